//! Where fields of the kernel's structures are, and which functions and tracepoints it has: read
//! from its own description of its types (BTF, `/sys/kernel/btf`).
//!
//! Programs are assembled for the kernel that runs, so no relocation is needed: what differs
//! between two kernels is looked up here.

use std::fs;
use std::path::{Path, PathBuf};

/// Why a description of types cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BtfError {
    /// The file cannot be read.
    #[error("{}: {error}", .path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the kernel says.
        error: std::io::Error,
    },
    /// It is no description of types, or is cut off.
    #[error("type information is broken: {0}")]
    Broken(&'static str),
    /// The kernel has no such structure, field, function or constant.
    #[error("this kernel has no {0}")]
    Missing(String),
    /// What the kernel has does not tell what is needed.
    #[error("{0}")]
    Unfit(String),
}

/// Where the kernel describes its types.
const DIRECTORY: &str = "/sys/kernel/btf";
/// `BTF_MAGIC`.
const MAGIC: u16 = 0xeb9f;
/// How deep anonymous structures may lie in each other.
const DEPTH: usize = 16;

/// Kinds of types (`BTF_KIND_*` of `linux/btf.h`).
mod kind {
    pub(super) const INT: u32 = 1;
    pub(super) const PTR: u32 = 2;
    pub(super) const ARRAY: u32 = 3;
    pub(super) const STRUCT: u32 = 4;
    pub(super) const UNION: u32 = 5;
    pub(super) const ENUM: u32 = 6;
    pub(super) const TYPEDEF: u32 = 8;
    pub(super) const VOLATILE: u32 = 9;
    pub(super) const CONST: u32 = 10;
    pub(super) const RESTRICT: u32 = 11;
    pub(super) const FUNC: u32 = 12;
    pub(super) const FUNC_PROTO: u32 = 13;
    pub(super) const VAR: u32 = 14;
    pub(super) const DATASEC: u32 = 15;
    pub(super) const DECL_TAG: u32 = 17;
    pub(super) const TYPE_TAG: u32 = 18;
    pub(super) const ENUM64: u32 = 19;
}

/// The kernel's types.
#[derive(Debug, Default)]
pub struct Types {
    strings: Vec<u8>,
    /// What type 1 on begin at in `data`.
    offsets: Vec<u32>,
    data: Vec<u8>,
}

#[derive(Clone, Copy)]
struct Type {
    name: u32,
    kind: u32,
    members: usize,
    /// Whether offsets of members are those of bit fields.
    bits: bool,
    /// The size, or the type that it refers to.
    other: u32,
    /// Where what follows the head begins.
    rest: usize,
}

impl Types {
    /// The types of the kernel that runs, with those of modules that are loaded and named.
    pub fn of_kernel(modules: &[&str]) -> Result<Self, BtfError> {
        let read = |name: &str| {
            let path = Path::new(DIRECTORY).join(name);
            fs::read(&path).map_err(|error| BtfError::Read { path, error })
        };
        let mut types = Self::default();
        types.add(&read("vmlinux")?)?;
        for module in modules {
            // One that is built in, or is not loaded, has no file of its own.
            if let Ok(bytes) = read(module) {
                types.add(&bytes)?;
            }
        }
        Ok(types)
    }

    /// Parses a description of types.
    pub fn parse(bytes: &[u8]) -> Result<Self, BtfError> {
        let mut types = Self::default();
        types.add(bytes)?;
        Ok(types)
    }

    /// Adds a description whose numbers and names go on from those that are here, as modules' do.
    fn add(&mut self, bytes: &[u8]) -> Result<(), BtfError> {
        let head = bytes.get(..24).ok_or(BtfError::Broken("no header"))?;
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four"));
        if u16::from_le_bytes([head[0], head[1]]) != MAGIC {
            return Err(BtfError::Broken("no magic number of this byte order"));
        }
        let part = |offset: u32, length: u32| {
            let begin = (word(4) as usize).checked_add(offset as usize)?;
            bytes.get(begin..begin.checked_add(length as usize)?)
        };
        let types = part(word(8), word(12)).ok_or(BtfError::Broken("types are cut off"))?;
        let strings = part(word(16), word(20)).ok_or(BtfError::Broken("names are cut off"))?;
        let base = self.data.len();
        // A module's names are counted from the end of the kernel's.
        self.data.extend_from_slice(types);
        self.strings.extend_from_slice(strings);
        let mut at = base;
        while at < self.data.len() {
            let head = self.head(at).ok_or(BtfError::Broken("a type is cut off"))?;
            let next = head.rest + rest_length(head.kind, head.members);
            if next > self.data.len() {
                return Err(BtfError::Broken("a type is cut off"));
            }
            self.offsets.push(at as u32);
            at = next;
        }
        Ok(())
    }

    fn word(&self, at: usize) -> Option<u32> {
        Some(u32::from_le_bytes(self.data.get(at..at + 4)?.try_into().ok()?))
    }

    fn head(&self, at: usize) -> Option<Type> {
        let info = self.word(at + 4)?;
        Some(Type {
            name: self.word(at)?,
            kind: info >> 24 & 0x1f,
            members: (info & 0xffff) as usize,
            bits: info >> 31 != 0,
            other: self.word(at + 8)?,
            rest: at + 12,
        })
    }

    /// A type by its number; nothing for `void`.
    fn get(&self, id: u32) -> Option<Type> {
        self.head(*self.offsets.get((id as usize).checked_sub(1)?)? as usize)
    }

    fn name_at(&self, offset: u32) -> &[u8] {
        let rest = self.strings.get(offset as usize..).unwrap_or_default();
        rest.split(|&byte| byte == 0).next().unwrap_or_default()
    }

    fn all(&self) -> impl Iterator<Item = Type> {
        self.offsets.iter().filter_map(|&at| self.head(at as usize))
    }

    fn find(&self, kinds: &[u32], name: &str) -> Option<Type> {
        self.all().find(|t| kinds.contains(&t.kind) && self.name_at(t.name) == name.as_bytes())
    }

    /// Through names, `const` and the like to what a type is.
    fn resolve(&self, mut id: u32) -> Option<Type> {
        for _ in 0..64 {
            let found = self.get(id)?;
            match found.kind {
                kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => {
                    id = found.other;
                }
                _ => return Some(found),
            }
        }
        None
    }

    /// Where a field lies in a structure, in bytes. `field` may go into structures that lie in it
    /// (`f_path.dentry`); unnamed ones are looked through.
    pub fn offset(&self, structure: &str, field: &str) -> Result<u32, BtfError> {
        let missing = || BtfError::Missing(format!("{structure}.{field}"));
        let mut within = self.find(&[kind::STRUCT, kind::UNION], structure).ok_or_else(missing)?;
        let mut offset = 0;
        for name in field.split('.') {
            let (at, type_of) = self.member(within, name.as_bytes(), DEPTH).ok_or_else(missing)?;
            offset += at;
            within = self.resolve(type_of).unwrap_or(within);
        }
        Ok(offset)
    }

    fn member(&self, within: Type, name: &[u8], depth: usize) -> Option<(u32, u32)> {
        if !matches!(within.kind, kind::STRUCT | kind::UNION) {
            return None;
        }
        for index in 0..within.members {
            let at = within.rest + 12 * index;
            let (its_name, type_of) = (self.word(at)?, self.word(at + 4)?);
            let bits = self.word(at + 8)?;
            let bits = if within.bits { bits & 0x00ff_ffff } else { bits };
            if self.name_at(its_name) == name {
                return Some((bits / 8, type_of));
            }
            if self.name_at(its_name).is_empty() && depth > 0 {
                let inner = self.resolve(type_of)?;
                if let Some((offset, found)) = self.member(inner, name, depth - 1) {
                    return Some((bits / 8 + offset, found));
                }
            }
        }
        None
    }

    /// What a structure takes, in bytes.
    pub fn size(&self, structure: &str) -> Result<u32, BtfError> {
        let found = self.find(&[kind::STRUCT, kind::UNION], structure);
        found.map(|t| t.other).ok_or_else(|| BtfError::Missing(format!("struct {structure}")))
    }

    /// The value of a constant of an enumeration.
    pub fn constant(&self, name: &str) -> Result<u32, BtfError> {
        for found in self.all().filter(|t| t.kind == kind::ENUM) {
            for index in 0..found.members {
                let at = found.rest + 8 * index;
                let its_name = self.word(at).unwrap_or_default();
                if self.name_at(its_name) == name.as_bytes() {
                    return self.word(at + 4).ok_or(BtfError::Broken("an enumeration"));
                }
            }
        }
        Err(BtfError::Missing(name.to_owned()))
    }

    /// The number of a structure among the kernel's types.
    pub fn structure_number(&self, name: &str) -> Option<u32> {
        self.number(kind::STRUCT, name)
    }

    /// The number of a function among the kernel's types.
    pub fn function_number(&self, name: &str) -> Option<u32> {
        self.number(kind::FUNC, name)
    }

    fn number(&self, kind: u32, name: &str) -> Option<u32> {
        let at = self.all().position(|t| t.kind == kind && self.name_at(t.name) == name.as_bytes());
        Some(at? as u32 + 1)
    }

    /// Whether the kernel has a function of this name that is not inlined everywhere.
    pub fn has_function(&self, name: &str) -> bool {
        self.find(&[kind::FUNC], name).is_some()
    }

    /// How many arguments a function takes.
    pub fn function_arguments(&self, name: &str) -> Result<usize, BtfError> {
        let missing = || BtfError::Missing(format!("function {name}"));
        let function = self.find(&[kind::FUNC], name).ok_or_else(missing)?;
        self.resolve(function.other).map(|prototype| prototype.members).ok_or_else(missing)
    }

    /// Whether the kernel has a tracepoint.
    pub fn has_tracepoint(&self, name: &str) -> bool {
        self.find(&[kind::TYPEDEF], &format!("btf_trace_{name}")).is_some()
    }

    /// The structures that a tracepoint's arguments point to; empty names for other arguments.
    pub fn tracepoint_arguments(&self, name: &str) -> Result<Vec<String>, BtfError> {
        let missing = || BtfError::Missing(format!("tracepoint {name}"));
        let typedef =
            self.find(&[kind::TYPEDEF], &format!("btf_trace_{name}")).ok_or_else(missing)?;
        let pointer = self.resolve(typedef.other).ok_or_else(missing)?;
        let prototype = self.resolve(pointer.other).ok_or_else(missing)?;
        if pointer.kind != kind::PTR || prototype.kind != kind::FUNC_PROTO {
            return Err(missing());
        }
        // The first is for the tracing machinery alone.
        let arguments = (1..prototype.members).map(|index| {
            let argument = self.word(prototype.rest + 8 * index + 4).unwrap_or_default();
            let pointed = self
                .resolve(argument)
                .filter(|t| t.kind == kind::PTR)
                .and_then(|pointer| self.resolve(pointer.other));
            let structure = pointed.filter(|t| t.kind == kind::STRUCT);
            let name = structure.map(|t| self.name_at(t.name)).unwrap_or_default();
            String::from_utf8_lossy(name).into_owned()
        });
        Ok(arguments.collect())
    }
}

/// What follows a type's head, in bytes.
fn rest_length(kind: u32, members: usize) -> usize {
    match kind {
        kind::INT | kind::VAR | kind::DECL_TAG => 4,
        kind::ARRAY => 12,
        kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => 12 * members,
        kind::ENUM | kind::FUNC_PROTO => 8 * members,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A description of: `struct inner { int a; }`, `struct outer { int x; union { struct inner
    /// in; long whole; }; }`, an enumeration and a tracepoint.
    fn description() -> Vec<u8> {
        let strings = b"\0int\0inner\0a\0outer\0x\0in\0whole\0state\0READY\0btf_trace_it\0long\0";
        let name = |wanted: &str| {
            let wanted: Vec<u8> = [b"\0", wanted.as_bytes(), b"\0"].concat();
            strings.windows(wanted.len()).position(|w| w == wanted).map_or(0, |at| at as u32 + 1)
        };
        let head = |named: &str, kind: u32, members: u32, other: u32| {
            let named = if named.is_empty() { 0 } else { name(named) };
            [named, kind << 24 | members, other]
        };
        let mut words = Vec::new();
        words.extend(head("int", kind::INT, 0, 4)); // 1
        words.push(32);
        words.extend(head("long", kind::INT, 0, 8)); // 2
        words.push(64);
        words.extend(head("inner", kind::STRUCT, 1, 8)); // 3
        words.extend([name("a"), 1, 32]);
        words.extend(head("", kind::UNION, 2, 8)); // 4
        words.extend([name("in"), 3, 0, name("whole"), 2, 0]);
        words.extend(head("outer", kind::STRUCT, 2, 16)); // 5
        words.extend([name("x"), 1, 0, 0, 4, 64]);
        words.extend(head("state", kind::ENUM, 1, 4)); // 6
        words.extend([name("READY"), 7]);
        words.extend(head("", kind::PTR, 0, 5)); // 7
        words.extend(head("", kind::FUNC_PROTO, 3, 0)); // 8
        words.extend([0, 2, 0, 7, 0, 1]);
        words.extend(head("", kind::PTR, 0, 8)); // 9
        words.extend(head("btf_trace_it", kind::TYPEDEF, 0, 9)); // 10
        let types: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        for word in [24, 0, types.len() as u32, types.len() as u32, strings.len() as u32] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(types);
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn fields_are_found_through_unnamed_structures() {
        let types = Types::parse(&description()).expect("well formed");
        assert_eq!(types.offset("outer", "x").ok(), Some(0));
        assert_eq!(types.offset("outer", "whole").ok(), Some(8));
        assert_eq!(types.offset("outer", "in.a").ok(), Some(12));
        assert_eq!(types.size("outer").ok(), Some(16));
        assert_eq!(types.constant("READY").ok(), Some(7));
        assert!(types.has_tracepoint("it"));
        assert_eq!(types.structure_number("outer"), Some(5));
        assert_eq!(types.function_number("outer"), None);
        assert_eq!(types.tracepoint_arguments("it").expect("there"), ["outer", ""]);
        let missing = types.offset("outer", "y").expect_err("no such field");
        assert_eq!(missing.to_string(), "this kernel has no outer.y");
    }

    proptest! {
        /// The file is the kernel's, but a reader that panics would take the daemon with it.
        #[test]
        fn what_is_broken_is_refused(at in 0usize..400, to: u8, cut in 0usize..400) {
            let mut bytes = description();
            let at = at % bytes.len();
            bytes[at] = to;
            bytes.truncate(bytes.len() - cut % bytes.len());
            if let Ok(types) = Types::parse(&bytes) {
                let _ = types.offset("outer", "in.a");
                let _ = types.constant("READY");
                let _ = types.tracepoint_arguments("it");
            }
        }
    }
}
