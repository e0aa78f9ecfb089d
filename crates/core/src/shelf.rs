//! Files that come with Terrace, or that a user keeps: found by name wherever a command is run.
//!
//! `laptop` on the shelf of machines is `machines/laptop.toml` in the first of these that has it:
//! the current directory, the user's configuration (`$XDG_CONFIG_HOME/terrace`, else
//! `~/.config/terrace`), what was installed (`../share/terrace`, seen from the command's own
//! directory), and the source tree that the command was built in.

use core::fmt;
use std::env;
use std::path::{Path, PathBuf};

/// A kind of file, which has a directory of its own in each place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shelf {
    /// Machine files.
    Machines,
    /// Memory files.
    Memories,
    /// Ladder files.
    Ladders,
}

/// A name under which nothing was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotFound {
    /// The files that were looked for, in order; none for what is a path.
    pub looked_for: Vec<PathBuf>,
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.looked_for.is_empty() {
            return f.write_str("no such file");
        }
        f.write_str("no such file; looked for ")?;
        for (i, path) in self.looked_for.iter().enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { ", " }, path.display())?;
        }
        Ok(())
    }
}

impl Shelf {
    /// Its directory in each place.
    const fn directory(self) -> &'static str {
        match self {
            Self::Machines => "machines",
            Self::Memories => "machines/memory",
            Self::Ladders => "ladders",
        }
    }

    /// The file of a name, or of a path that is there.
    ///
    /// # Errors
    ///
    /// Where it was looked for, if there is none.
    pub fn find(self, name_or_path: impl AsRef<Path>) -> Result<PathBuf, NotFound> {
        self.find_in(name_or_path.as_ref(), &places())
    }

    fn find_in(self, path: &Path, places: &[PathBuf]) -> Result<PathBuf, NotFound> {
        if path.exists() && !path.is_dir() {
            return Ok(path.to_owned());
        }
        // Only a bare word is a name: `./x`, `x.toml` and `` are not.
        let is_name = path.file_name().is_some_and(|name| name == path.as_os_str())
            && path.extension().is_none_or(|extension| extension != "toml");
        let mut looked_for = Vec::new();
        if is_name {
            let mut file = path.as_os_str().to_owned();
            file.push(".toml");
            for place in places {
                let file = place.join(self.directory()).join(&file);
                if file.is_file() {
                    return Ok(file);
                }
                looked_for.push(file);
            }
        }
        // What reading a directory comes to is the reader's to say.
        if path.is_dir() {
            return Ok(path.to_owned());
        }
        Err(NotFound { looked_for })
    }
}

/// Where the shelves are, for this user and this installation.
fn places() -> Vec<PathBuf> {
    let absolute =
        |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let configuration =
        absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")));
    let mut places = vec![PathBuf::from(".")];
    places.extend(configuration.map(|directory| directory.join("terrace")));
    places.extend(env::current_exe().iter().flat_map(|executable| around(executable)));
    places
}

/// The places that belong to an executable: of an installation, and of a build directory.
fn around(executable: &Path) -> Vec<PathBuf> {
    let Some(directory) = executable.parent() else { return Vec::new() };
    let mut places = Vec::new();
    places.extend(directory.parent().map(|prefix| prefix.join("share/terrace")));
    // `target/release` and `target/debug` lie in the source tree.
    places.extend(
        directory
            .ancestors()
            .nth(2)
            .filter(|source| source.join("ladders").is_dir() && source.join("machines").is_dir())
            .map(Path::to_owned),
    );
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An empty directory that goes away.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = env::temp_dir().join(format!("terrace-shelf-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).expect("a directory");
            Self(path)
        }

        fn file(&self, name: &str) -> PathBuf {
            let path = self.0.join(name);
            std::fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
            std::fs::write(&path, "").expect("a file");
            path
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_name_is_found_in_the_first_place_that_has_it() {
        let scratch = Scratch::new("order");
        let places = [scratch.0.join("first"), scratch.0.join("second")];
        let late = scratch.file("second/machines/mine.toml");
        let find = |name: &str| Shelf::Machines.find_in(Path::new(name), &places);

        assert_eq!(find("mine"), Ok(late));
        let early = scratch.file("first/machines/mine.toml");
        assert_eq!(find("mine"), Ok(early));
        // The other shelves have nothing of that name.
        let missing = Shelf::Ladders.find_in(Path::new("mine"), &places).unwrap_err();
        let looked_for = places.map(|place| place.join("ladders/mine.toml"));
        assert_eq!(missing.looked_for, looked_for);
        assert!(missing.to_string().contains("second/ladders/mine.toml"), "{missing}");
    }

    #[test]
    fn a_path_is_not_looked_for_elsewhere() {
        let scratch = Scratch::new("paths");
        let there = scratch.file("machines/there.toml");
        let places = [scratch.0.clone()];
        let find = |path: &Path| Shelf::Machines.find_in(path, &places);

        assert_eq!(find(&there), Ok(there.clone()));
        for path in ["./there", "x/there", "there.toml", "", ".", "/"] {
            let found = find(Path::new(path));
            let is_directory = Path::new(path).is_dir();
            assert_eq!(found.is_ok(), is_directory, "{path}: {found:?}");
            if let Err(missing) = found {
                assert_eq!(missing.to_string(), "no such file", "{path}");
            }
        }
    }

    #[test]
    fn an_installed_command_looks_beside_itself_and_a_built_one_in_its_source_tree() {
        let scratch = Scratch::new("around");
        assert_eq!(
            around(Path::new("/usr/local/bin/terrace")),
            [PathBuf::from("/usr/local/share/terrace")]
        );
        scratch.file("machines/x.toml");
        scratch.file("ladders/x.toml");
        let places = around(&scratch.0.join("target/release/terrace"));
        assert!(places.contains(&scratch.0), "{places:?}");
    }
}
