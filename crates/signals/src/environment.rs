//! The environment that this process was started with, for the programs that it starts: entry
//! by entry, as the kernel handed it on.
//!
//! The standard library keeps a sorted map as soon as one variable is set: the order goes, a name
//! that is there twice is there once, and an entry without `=` is dropped. A program can tell.

use std::ffi::{CStr, CString, OsStr, OsString, c_char};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Entries in the order in which the program finds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment(Vec<CString>);

unsafe extern "C" {
    /// The C library's.
    static mut environ: *const *const c_char;
}

impl Environment {
    /// What this process was started with.
    pub fn inherited() -> Self {
        let mut entries = Vec::new();
        // SAFETY: a list that ends with a null, of texts that end with one. Nothing here sets
        // a variable of its own, so it is the list that the kernel handed on, which stays.
        unsafe {
            let mut at = environ;
            while !at.is_null() && !(*at).is_null() {
                entries.push(CStr::from_ptr(*at).to_owned());
                at = at.add(1);
            }
        }
        Self(entries)
    }

    /// The value of a variable, of the last entry with its name: that is the one that the dynamic
    /// linker takes. (`getenv` takes the first.)
    pub fn last(&self, name: &str) -> Option<OsString> {
        let value = self.0.iter().rev().find_map(|entry| value_of(entry, name))?;
        Some(OsString::from_vec(value.to_owned()))
    }

    /// Gives a variable a value: in every entry with its name, for which of them counts differs
    /// between those who read them; in a new last one where there is none.
    ///
    /// # Errors
    /// The value has a null byte.
    pub fn set(&mut self, name: &str, value: &OsStr) -> io::Result<()> {
        let entry = CString::new([name.as_bytes(), b"=", value.as_bytes()].concat())?;
        let mut is_there = false;
        for old in self.0.iter_mut().filter(|old| value_of(old, name).is_some()) {
            old.clone_from(&entry);
            is_there = true;
        }
        if !is_there {
            self.0.push(entry);
        }
        Ok(())
    }

    /// What has a forked child begin its program with this environment.
    pub(crate) fn installer(&self) -> Installer {
        let entries = self.0.clone();
        let address = |entry: &CString| entry.as_ptr().expose_provenance();
        let list = entries.iter().map(address).chain([0]).collect();
        Installer { list, _entries: entries }
    }
}

/// Entries with a list of where they are, as the kernel wants it.
pub(crate) struct Installer {
    list: Vec<usize>,
    _entries: Vec<CString>,
}

impl Installer {
    /// Sets it. Called in the child.
    pub(crate) fn install(&self) {
        let list = self.list.as_ptr().expose_provenance();
        // SAFETY: in a child of which nobody else runs. The list ends with a null, and it and its
        // texts live until the child has become its program, or has ended.
        unsafe { environ = std::ptr::with_exposed_provenance(list) };
    }
}

/// The value of an entry, if it has this name.
fn value_of<'a>(entry: &'a CStr, name: &str) -> Option<&'a [u8]> {
    entry.to_bytes().strip_prefix(name.as_bytes())?.strip_prefix(b"=")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(entries: &[&str]) -> Environment {
        Environment(entries.iter().map(|entry| CString::new(*entry).unwrap()).collect())
    }

    #[test]
    fn what_is_set_leaves_everything_else_where_it_is() {
        let mut environment = of(&["B=1", "bare", "A=2", "=x", "A=3", "AB=4", "B="]);

        environment.set("A", "new".as_ref()).unwrap();
        environment.set("C", "=".as_ref()).unwrap();

        let expected = ["B=1", "bare", "A=new", "=x", "A=new", "AB=4", "B=", "C=="];
        assert_eq!(environment, of(&expected));
        assert_eq!(environment.last("B"), Some("".into()));
        assert_eq!(environment.last("bare"), None, "it has no value");
        assert!(environment.set("D", "a\0b".as_ref()).is_err());
    }

    #[test]
    fn a_program_finds_just_these_entries() {
        let entries = ["Z=1", "bare", "A=2", "=x", "A=3", "PATH=/nowhere", "B="];
        let mut command = std::process::Command::new("/bin/cat");
        command.arg("/proc/self/environ").stdout(std::process::Stdio::piped());

        let program = crate::spawn(&mut command, &of(&entries)).unwrap();

        let found = program.wait_with_output().unwrap().stdout;
        let found: Vec<_> = found.strip_suffix(b"\0").unwrap().split(|&byte| byte == 0).collect();
        assert_eq!(found, entries.map(str::as_bytes));
    }

    #[test]
    fn this_process_has_what_the_kernel_says() {
        let kernel = std::fs::read("/proc/self/environ").unwrap();
        let inherited = Environment::inherited();
        let ours: Vec<u8> =
            inherited.0.iter().flat_map(|e| e.to_bytes_with_nul()).copied().collect();
        assert_eq!(kernel, ours);
    }

    #[test]
    fn a_command_that_sets_variables_by_itself_is_refused() {
        let mut command = std::process::Command::new("true");
        command.env("A", "1");
        let refused = crate::spawn(&mut command, &Environment::inherited());
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
