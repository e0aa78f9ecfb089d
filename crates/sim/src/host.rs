//! Memory of the machine that simulates.

use std::hint::black_box;

use terrace_core::Bytes;

use crate::error::SimError;

/// Refuses a parameter for which the machine that simulates would need more memory than it gives.
/// An allocation that fails later ends the whole command.
pub(crate) fn has_room(parameter: &'static str, needed: Bytes, what: &str) -> Result<(), SimError> {
    let mut room: Vec<u8> = Vec::new();
    let bytes = usize::try_from(needed.get());
    let is_there = bytes.is_ok_and(|bytes| room.try_reserve_exact(bytes).is_ok());
    // The compiler would leave out what nobody looks at.
    black_box(&room);
    if is_there {
        return Ok(());
    }
    let message = format!(
        "{what} would take {needed} of the memory of the machine that simulates, which does not \
         give it"
    );
    Err(SimError::parameter(parameter, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_machine_gives_is_refused_before_it_is_asked_for() {
        assert!(has_room("size", Bytes::kib(64), "a little").is_ok());
        let error = has_room("size", Bytes(u64::MAX), "all").expect_err("refused").to_string();
        assert!(error.starts_with("size: all would take "), "{error}");
    }
}
