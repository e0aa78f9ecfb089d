//! Assembled programs and their maps as an ELF object, which is what the loader reads.

use object::write::{Object, Relocation, Symbol, SymbolSection};
use object::{
    Architecture, BinaryFormat, Endianness, RelocationFlags, SectionKind, SymbolFlags, SymbolKind,
    SymbolScope,
};

use super::assembler::Code;

/// Kinds of maps (`linux/bpf.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MapKind {
    /// Keys to values; full is full.
    Hash = 1,
    /// Numbers to values.
    Array = 2,
    /// A queue of records to user space; `entries` are bytes.
    Ring = 27,
}

/// A map of a program.
#[derive(Clone, Copy, Debug)]
pub struct Map {
    /// Its name, by which code refers to it.
    pub name: &'static str,
    /// What kind.
    pub kind: MapKind,
    /// Bytes of a key.
    pub key: u32,
    /// Bytes of a value.
    pub value: u32,
    /// How many entries at most, or bytes of a ring.
    pub entries: u32,
}

/// A program and what it is attached to.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its name, at most 15 letters.
    pub name: &'static str,
    /// The kind of hook, as sections of object files are named: `tp_btf`, `fentry`, `fexit`,
    /// `iter`.
    pub hook: &'static str,
    /// The code.
    pub code: Code,
}

/// `R_BPF_64_64`: the address of a map in a load of 64 bits.
const RELOCATION: u32 = 1;

/// An object file of programs and maps.
///
/// # Errors
/// If the file would be malformed: two things of one name, say.
pub fn object_file(maps: &[Map], programs: &[Program]) -> Result<Vec<u8>, String> {
    let mut file = Object::new(BinaryFormat::Elf, Architecture::Bpf, Endianness::Little);
    let license = file.add_section(Vec::new(), b"license".to_vec(), SectionKind::Data);
    // Helpers that read kernel memory are for programs under a licence that the kernel takes for
    // compatible with its own; the crate's, MIT or Apache-2.0, includes one.
    file.set_section_data(license, b"Dual MIT/GPL\0".to_vec(), 1);
    let section = file.add_section(Vec::new(), b"maps".to_vec(), SectionKind::Data);
    let symbol = |name: &str, value, size, kind, section| Symbol {
        name: name.as_bytes().to_vec(),
        value,
        size,
        kind,
        scope: SymbolScope::Dynamic,
        weak: false,
        section: SymbolSection::Section(section),
        flags: SymbolFlags::None,
    };
    let mut symbols = Vec::new();
    for map in maps {
        // `struct bpf_map_def`: kind, key, value, entries, flags.
        let words = [map.kind as u32, map.key, map.value, map.entries, 0];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let at = file.append_section_data(section, &bytes, 4);
        let id = file.add_symbol(symbol(map.name, at, 20, SymbolKind::Data, section));
        symbols.push((map.name, id));
    }
    for program in programs {
        let name = format!("{}/{}", program.hook, program.name);
        let section = file.add_section(Vec::new(), name.into_bytes(), SectionKind::Text);
        let length = program.code.bytes.len() as u64;
        file.append_section_data(section, &program.code.bytes, 8);
        file.add_symbol(symbol(program.name, 0, length, SymbolKind::Text, section));
        for &(offset, map) in &program.code.maps {
            let found = symbols.iter().find(|(name, _)| *name == map);
            let &(_, symbol) = found.ok_or_else(|| format!("there is no map {map}"))?;
            let flags = RelocationFlags::Elf { r_type: RELOCATION };
            let relocation = Relocation { offset, symbol, addend: 0, flags };
            file.add_relocation(section, relocation).map_err(|e| e.to_string())?;
        }
    }
    file.write().map_err(|e| e.to_string())
}
