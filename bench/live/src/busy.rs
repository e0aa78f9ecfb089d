//! Other programs that want the processors, too.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// Loops that compute and touch no memory, ended when dropped.
#[derive(Debug)]
pub struct Busy(Vec<Child>);

impl Busy {
    /// So many, each in a session of its own: where the scheduler shares processors between
    /// sessions or control groups, each is a group, as services are.
    pub fn start(count: usize) -> io::Result<Self> {
        let mut busy = Self(Vec::with_capacity(count));
        for _ in 0..count {
            let mut command = Command::new("sh");
            command.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
            // SAFETY: the call is safe in a child that has just been forked.
            unsafe {
                command.pre_exec(|| match libc::setsid() {
                    -1 => Err(io::Error::last_os_error()),
                    _ => Ok(()),
                });
            }
            busy.0.push(command.spawn()?);
        }
        Ok(busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It may have been killed already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_have_sessions_of_their_own_and_end() {
        let busy = Busy::start(2).expect("a shell");
        let pids: Vec<_> = busy.0.iter().map(|child| child.id().cast_signed()).collect();

        // The session is made before the shell is executed, and `spawn` waits for that.
        // SAFETY: asks for a number.
        let sessions: Vec<_> = pids.iter().map(|&pid| unsafe { libc::getsid(pid) }).collect();
        drop(busy);

        assert_eq!(sessions, pids);
        // SAFETY: sends nothing.
        assert!(pids.iter().all(|&pid| unsafe { libc::kill(pid, 0) } == -1));
    }
}
