//! Documents name what there is: words of reports in the glossary, files and functions in the
//! architecture, links between documents. Only texts are compared here.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// A source without its tests.
fn source(path: &str) -> String {
    let text = read(path);
    text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default().to_owned()
}

/// Texts between two marks, again and again.
fn between<'a>(text: &'a str, open: &'a str, close: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(open).skip(1).filter_map(move |rest| rest.split_once(close)).map(|(inner, _)| inner)
}

/// The cells of a table's row.
fn cells(line: &str) -> Option<Vec<&str>> {
    let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    Some(inner.split('|').map(str::trim).collect())
}

/// Whether it is a word, or a few, that a report prints and nothing that is put together.
fn is_term(text: &str) -> bool {
    text.trim() == text
        && text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || " _-.,'()".contains(c))
}

/// The first text of each tuple or call, `("budget", …`.
fn first_texts(source: &str) -> BTreeSet<String> {
    let firsts = source.split('(').skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"'));
    let texts = firsts.filter_map(|rest| rest.split_once('"'));
    let texts = texts.filter(|(_, rest)| rest.starts_with(','));
    texts.map(|(text, _)| text).filter(|text| is_term(text)).map(str::to_owned).collect()
}

/// The words in the heads of tables: "mapped, most" is two, and "cost, cycles (realised)" three.
fn heads(source: &str) -> BTreeSet<String> {
    let calls = source.split("table(").skip(1);
    let lists = calls.filter_map(|rest| rest.trim_start().strip_prefix('[')?.split_once(']'));
    let heads = lists.flat_map(|(list, _)| list.split('"').skip(1).step_by(2));
    let words = heads.flat_map(|head| head.split([',', '(', ')'])).map(str::trim);
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// The names of an enum's variants, `=> "promote"`.
fn names(source: &str) -> BTreeSet<String> {
    between(source, "=> \"", "\"").map(str::to_owned).collect()
}

/// The terms of the glossary: what is bold or code in the first cell of a row.
fn glossary() -> BTreeSet<String> {
    let mut terms = BTreeSet::new();
    for row in read("docs/glossary.md").lines().filter_map(cells) {
        let Some(first) = row.first() else { continue };
        let bold = first.split("**").skip(1).step_by(2);
        let code = first.split('`').skip(1).step_by(2);
        terms.extend(bold.chain(code).map(str::to_owned));
    }
    terms
}

#[test]
fn every_word_of_reports_series_and_prices_is_in_the_glossary() {
    let mut printed = BTreeSet::new();
    for path in ["crates/cli/src/run/render.rs", "crates/cli/src/attach/render.rs"] {
        let source = source(path);
        printed.extend(first_texts(&source));
        printed.extend(heads(&source));
    }
    for path in [
        "crates/report/src/openmetrics/mod.rs",
        "crates/report/src/openmetrics/attached.rs",
        "crates/report/src/openmetrics/kloc.rs",
        "crates/report/src/openmetrics/provision.rs",
    ] {
        printed.extend(first_texts(&source(path)));
    }
    for path in ["crates/core/src/action.rs", "crates/economics/src/ledger.rs"] {
        printed.extend(names(&source(path)));
    }
    // `PASSED (exploring)` is two words, too.
    for name in names(&source("crates/economics/src/mode.rs")) {
        printed.insert(name.split(" (").next().unwrap_or_default().to_owned());
    }
    let run = source("crates/report/src/run.rs");
    let outside = source("crates/report/src/outside.rs");
    printed.extend(names(&run));
    // Its sentences explain themselves; its names do not.
    printed.extend(names(&outside).into_iter().filter(|name| !name.contains(' ')));

    for known in [
        "thrashing",
        "store_content",
        "TLB shootdown",
        "FORCED",
        "not-asked",
        "lately",
        "last after",
        "realised",
    ] {
        assert!(printed.contains(known), "`{known}` was not found in the sources");
    }
    let glossary = glossary();
    let missing: Vec<_> = printed.difference(&glossary).collect();
    assert!(missing.is_empty(), "not in docs/glossary.md: {missing:?}");
}

/// What is wrong with a row that names a file and its functions; nothing if it is another row.
fn wrong(row: &[&str]) -> Vec<String> {
    let [file, functions, _] = row else { return Vec::new() };
    let Some(path) = file.strip_prefix('`').and_then(|rest| rest.strip_suffix('`')) else {
        return Vec::new();
    };
    if Path::new(path).extension().is_none_or(|extension| extension != "rs") {
        return Vec::new();
    }
    if !root().join(path).exists() {
        return vec![format!("{path}: no such file")];
    }
    // What tests define is no step of a path.
    let text = source(path);
    let there = |name: &str| {
        let defined =
            ["(", "<", " |"].iter().any(|after| text.contains(&format!("fn {name}{after}")));
        defined.then_some(())
    };
    let named = functions.split('`').skip(1).step_by(2);
    named
        .filter(|name| there(name).is_none())
        .map(|name| format!("{path}: no function `{name}`"))
        .collect()
}

#[test]
fn files_and_functions_of_the_architecture_exist() {
    let text = read("docs/architecture.md");
    let rows: Vec<_> = text.lines().filter_map(cells).collect();
    let steps = rows.iter().filter(|row| row.len() == 3 && row[0].ends_with(".rs`")).count();
    assert!(steps > 50, "only {steps} steps were found");
    let mut faults: Vec<_> = rows.iter().flat_map(|row| wrong(row)).collect();
    // Paths that stand anywhere else.
    for path in text.split('`').skip(1).step_by(2) {
        let is_path = ["crates/", "tests/", "bench/"].iter().any(|begin| path.starts_with(begin));
        if is_path && !root().join(path).exists() {
            faults.push(format!("{path}: no such file"));
        }
    }
    assert!(faults.is_empty(), "docs/architecture.md:\n{}", faults.join("\n"));
}

/// The steps of a path at the head of a room, as rows: "1. `file`: `function`, `function`: what".
fn steps(head: &str) -> Vec<Vec<String>> {
    let text: Vec<_> = head.lines().filter_map(|line| line.strip_prefix("//! ")).collect();
    let begins = |line: &str| {
        line.split_once(". `").is_some_and(|(n, _)| n.chars().all(|c| c.is_ascii_digit()))
    };
    let mut steps: Vec<String> = Vec::new();
    for line in text {
        if begins(line) {
            steps.push(line.to_owned());
        } else if line.starts_with("   ")
            && let Some(last) = steps.last_mut()
        {
            last.push(' ');
            last.push_str(line.trim());
        }
    }
    let row = |step: &String| {
        let mut parts = step.split_once(". ")?.1.splitn(3, ": ");
        let file = parts.next()?.trim_matches('`');
        Some(vec![
            format!("`crates/live/src/{file}`"),
            parts.next()?.to_owned(),
            parts.next()?.to_owned(),
        ])
    };
    steps.iter().map(|step| row(step).unwrap_or_default()).collect()
}

#[test]
fn paths_at_the_heads_of_rooms_exist() {
    for room in ["fault", "evict", "fork"] {
        let path = format!("crates/live/src/{room}/mod.rs");
        let steps = steps(&read(&path));
        assert!((9..=12).contains(&steps.len()), "{path}: {} steps were found", steps.len());
        let faults: Vec<_> = steps
            .iter()
            .flat_map(|row| wrong(&row.iter().map(String::as_str).collect::<Vec<_>>()))
            .collect();
        assert!(faults.is_empty(), "{path}:\n{}", faults.join("\n"));
    }
}

/// What the paths crossed before the rooms were made (November 2026): at most half of it is left.
#[test]
fn paths_cross_at_most_half_of_the_files_that_they_did() {
    for (room, before) in [("fault", 19), ("evict", 25), ("fork", 24)] {
        let steps = steps(&read(&format!("crates/live/src/{room}/mod.rs")));
        let files: BTreeSet<_> = steps.iter().map(|step| step[0].as_str()).collect();
        assert!(files.len() * 2 <= before, "{room} crosses {} files: {files:?}", files.len());
    }
}

/// What stands at the head of a room and in the architecture is one path, told twice.
#[test]
fn a_path_is_the_same_at_the_head_of_its_room_and_in_the_architecture() {
    let architecture = read("docs/architecture.md");
    for (room, heading) in
        [("fault", "### A fault"), ("evict", "### An eviction"), ("fork", "### A fork")]
    {
        let (_, section) = architecture.split_once(heading).expect(heading);
        let section = section.split("\n#").next().unwrap_or_default();
        let rows = section.lines().filter_map(cells).filter(|row| row[0].starts_with('`'));
        let told: Vec<_> = rows.map(|row| (row[0].to_owned(), row[1].to_owned())).collect();
        let steps = steps(&read(&format!("crates/live/src/{room}/mod.rs")));
        let steps: Vec<_> = steps
            .iter()
            .map(|step| {
                let file = step[0].replace("crates/live/src/../../", "crates/");
                (file, step[1].clone())
            })
            .collect();
        assert_eq!(steps, told, "{room}");
    }
}

#[test]
fn a_step_at_the_head_of_a_room_is_read_over_several_lines() {
    let head = "//! 1. `fault/serve.rs`: `serve`, `nobody`: takes\n//!    room\n//!\n//! Else.";
    let steps = steps(head);
    assert_eq!(steps, [["`crates/live/src/fault/serve.rs`", "`serve`, `nobody`", "takes room"]]);
    let row: Vec<_> = steps[0].iter().map(String::as_str).collect();
    assert_eq!(wrong(&row), ["crates/live/src/fault/serve.rs: no function `nobody`"]);
}

/// Crates in the order of the table of rooms.
fn rooms() -> Vec<String> {
    let text = read("docs/architecture.md");
    let rows = text.lines().filter_map(cells).filter(|row| row[0].starts_with("`crates/"));
    let rows = rows.filter(|row| !row[0].contains(".rs"));
    let names = rows.flat_map(|row| between(row[0], "`crates/", "`").collect::<Vec<_>>());
    names.map(str::to_owned).collect()
}

#[test]
fn a_room_depends_only_on_rooms_below_it() {
    let rooms = rooms();
    assert!(rooms.len() > 10, "only {rooms:?} were found");
    for (i, room) in rooms.iter().enumerate() {
        let manifest = read(&format!("crates/{room}/Cargo.toml"));
        let section = manifest.split_once("\n[dependencies]\n").map_or("", |(_, rest)| rest);
        let dependencies = section.split("\n[").next().unwrap_or_default();
        for above in &rooms[..i] {
            let depends = dependencies.lines().any(|line| {
                line.strip_prefix("terrace-")
                    .and_then(|rest| rest.strip_prefix(above.as_str()))
                    .is_some_and(|rest| rest.starts_with([' ', '.', '=']))
            });
            assert!(!depends, "crates/{room} depends on crates/{above}, which is above it");
        }
    }
}

#[test]
fn a_step_that_is_not_there_any_more_is_found() {
    assert!(wrong(&["`crates/live/src/fault/serve.rs`", "`serve`", "x"]).is_empty());
    let gone = wrong(&["`crates/live/src/fault/serve.rs`", "`serve`, `served_by_nobody`", "x"]);
    assert_eq!(gone, ["crates/live/src/fault/serve.rs: no function `served_by_nobody`"]);
    assert_eq!(wrong(&["`crates/live/src/gone.rs`", "`x`", "x"]).len(), 1);
}

/// All documents, from the root.
fn documents() -> Vec<PathBuf> {
    fn below(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                below(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    let root = root();
    let mut found =
        ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"].map(|name| root.join(name)).to_vec();
    below(&root.join("docs"), &mut found);
    below(&root.join("bench"), &mut found);
    found
}

/// Files below a directory whose names end in `.rs`.
fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// What a source without its tests gives a name: items, and fields that stand on a line of their
/// own.
fn defined(source: &str) -> Vec<&str> {
    const KEYWORDS: [&str; 8] = ["fn", "struct", "enum", "trait", "type", "const", "static", "mod"];
    let mut names = Vec::new();
    for line in source.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
        let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let words: Vec<_> = words.filter(|word| !word.is_empty() && *word != "mut").collect();
        let items = words.windows(2).filter(|pair| KEYWORDS.contains(&pair[0]));
        names.extend(items.map(|pair| pair[1]));
        let field = ["pub ", "pub(crate) ", "pub(super) "]
            .iter()
            .find_map(|public| line.strip_prefix(public))
            .unwrap_or(line);
        if let Some((name, _)) = field.split_once(": ")
            && name.chars().all(|c| c.is_ascii_lowercase() || c == '_')
        {
            names.push(name);
        }
    }
    names
}

/// `IdleMind`, `idle_mind` and `IDLE_MIND` are `idle` and `mind`.
fn parts_of(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut before = '_';
    for c in name.chars() {
        if c == '_' || (c.is_ascii_uppercase() && before.is_ascii_lowercase()) {
            parts.push(String::new());
        }
        if c != '_' {
            parts.last_mut().unwrap().push(c.to_ascii_lowercase());
        }
        before = c;
    }
    parts
}

/// Words that hid what they named: the glossary has the field's terms for it.
const NO_NAMES: [&str; 4] = ["duty", "limbo", "sight", "mind"];
/// These may be a part of a name that says what of (`lacks_spare_blocks`), and are none alone.
const NO_WHOLE_NAMES: [&str; 3] = ["kept", "aside", "spare"];
/// Crates in which they were names. (A volume's spare blocks are called so by everybody.)
const THERE: [&str; 5] = ["kloc-live", "live", "preload", "policy", "sim"];

fn hides(name: &str, whole: bool) -> bool {
    let parts = parts_of(name);
    parts.iter().any(|part| NO_NAMES.contains(&part.as_str()))
        || whole && parts.len() == 1 && NO_WHOLE_NAMES.contains(&parts[0].as_str())
}

#[test]
fn names_and_documents_have_no_words_that_hide_what_they_are_about() {
    let (mut found, mut names) = (Vec::new(), 0);
    for krate in fs::read_dir(root().join("crates")).unwrap().flatten() {
        let mut files = Vec::new();
        sources(&krate.path().join("src"), &mut files);
        let whole = THERE.iter().any(|there| krate.file_name() == *there);
        for file in files {
            let text = fs::read_to_string(&file).unwrap();
            let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
            let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            let defined = [defined(text), vec![stem]].concat();
            names += defined.len();
            let hiding = defined.iter().filter(|name| hides(name, whole));
            found.extend(hiding.map(|name| format!("{}: {name}", file.display())));
        }
    }
    assert!(names > 10_000, "only {names} names were found");
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap().to_lowercase();
        let words = text.split(|c: char| !c.is_ascii_alphanumeric());
        let hiding = words.filter(|word| NO_NAMES.contains(word));
        found.extend(hiding.map(|word| format!("{}: {word}", document.display())));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_name_is_found_wherever_it_is_given() {
    let source = "pub(crate) struct LiveMind {\n    /// Kept.\n    pub kept: u32,\n}\nconst SPARE: u8 = 1;\n\
                  static mut LIMBO: u8 = 2;\npub fn has_spare_room(kept: u8) {}\n// fn duty()\n";
    let names = defined(source);
    assert_eq!(names, ["LiveMind", "kept", "SPARE", "LIMBO", "has_spare_room"]);
    let hiding: Vec<_> = names.into_iter().filter(|name| hides(name, true)).collect();
    assert_eq!(hiding, ["LiveMind", "kept", "SPARE", "LIMBO"]);
    assert!(!hides("Foresight", true) && !hides("kept", false));
}

/// The structures of a source with more than twenty fields that do not say why: what stands before
/// them has no word of their fields.
fn unexplained(source: &str) -> Vec<&str> {
    let lines: Vec<_> = source.lines().collect();
    let mut found = Vec::new();
    for (i, line) in lines.iter().enumerate() {
        let inner = line.trim_start();
        let indent = line.len() - inner.len();
        let inner = inner
            .strip_prefix("pub")
            .map_or(inner, |rest| rest.split_once(' ').map_or(rest, |(_, rest)| rest));
        let Some(name) = inner.strip_prefix("struct ").filter(|rest| rest.ends_with('{')) else {
            continue;
        };
        let is_field = |line: &&&str| {
            line.len() - line.trim_start().len() == indent + 4
                && !line.trim_start().starts_with(['/', '#'])
                && line.contains(": ")
        };
        let end = format!("{}}}", " ".repeat(indent));
        let fields = lines[i + 1..].iter().take_while(|line| **line != end).filter(is_field);
        let before = lines[..i].iter().rev().map(|line| line.trim_start());
        let mut before = before.take_while(|line| line.starts_with(['/', '#', 'v']));
        if fields.count() > 20 && !before.any(|line| line.contains("field")) {
            found.push(name.split([' ', '<']).next().unwrap_or_default());
        }
    }
    found
}

#[test]
fn a_structure_of_more_than_twenty_fields_says_why() {
    let mut files = Vec::new();
    sources(&root().join("crates"), &mut files);
    assert!(files.len() > 500, "only {} sources were found", files.len());
    let mut found = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        found.extend(unexplained(&text).iter().map(|name| format!("{}: {name}", file.display())));
    }
    assert!(found.is_empty(), "no reason for so many fields:\n{}", found.join("\n"));

    let of = |fields: usize, reason: &str| {
        let fields = "    /// One.\n    pub f: u8,\n".repeat(fields);
        format!(
            "/// A thing.{reason}\n#[derive(Debug)]\npub(crate) struct Thing<'a> {{\n{fields}}}\n"
        )
    };
    assert_eq!(unexplained(&of(21, "")), ["Thing"]);
    assert!(unexplained(&of(20, "")).is_empty());
    assert!(unexplained(&of(21, " A field for each of its sides.")).is_empty());
}

/// The files and folders beside a source that has a table of them and does not name them in it.
/// What only tests have (`#[cfg(test)]`) does not have to be there.
fn not_told(source: &str, beside: &[String]) -> Vec<String> {
    let rows = source.lines().filter(|line| line.starts_with("//! | "));
    let named: BTreeSet<_> = rows
        .flat_map(|row| row.split('`').skip(1).step_by(2))
        .map(|name| name.strip_prefix("mod@").unwrap_or(name))
        .collect();
    let for_tests = |name: &str| {
        let declared = format!("mod {name};");
        let mut after = source.split("#[cfg(test)]\n").skip(1);
        after.any(|rest| rest.lines().next().is_some_and(|line| line.ends_with(&declared)))
    };
    let missing = beside.iter().filter(|name| !named.contains(name.as_str()) && !for_tests(name));
    missing.cloned().collect()
}

/// A table of files is how a reader enters a room.
#[test]
fn a_table_of_files_names_all_of_them() {
    let mut files = Vec::new();
    for krate in fs::read_dir(root().join("crates")).unwrap().flatten() {
        sources(&krate.path().join("src"), &mut files);
    }
    let (mut found, mut tables) = (Vec::new(), 0);
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let stem = file.file_stem().unwrap().to_str().unwrap();
        if !["//! | file | concept |", "//! | room | concept |"].iter().any(|h| text.contains(h)) {
            continue;
        }
        tables += 1;
        let is_head = ["mod", "lib", "main"].contains(&stem);
        let folder =
            if is_head { file.parent().unwrap().to_owned() } else { file.with_extension("") };
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        let modules = entries.map(|entry| entry.path()).filter(|path| {
            let is_source = path.extension().is_some_and(|extension| extension == "rs");
            is_source && *path != file || path.join("mod.rs").exists()
        });
        let beside: Vec<_> =
            modules.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
        let missing = not_told(&text, &beside);
        found.extend(missing.iter().map(|name| format!("{}: {name}", file.display())));
    }
    assert!(tables > 30, "only {tables} tables were found");
    assert!(found.is_empty(), "not in the table of files:\n{}", found.join("\n"));

    let head = "//! | file | concept |\n//! | [`one`], [`run`](mod@run) | x |\n//! | `mod@two` | y |\n\n\
                #[cfg(test)]\npub(crate) mod fixture;\nmod three;\n";
    let beside = ["one", "run", "two", "three", "fixture"].map(str::to_owned);
    assert_eq!(not_told(head, &beside), ["three"]);
}

/// No file of the pager lies flat but these, which several rooms share.
#[test]
fn every_source_of_the_live_world_is_in_a_room() {
    let entries = fs::read_dir(root().join("crates/live/src")).unwrap().flatten();
    let files = entries.map(|entry| entry.path()).filter(|path| path.is_file());
    let flat: BTreeSet<_> =
        files.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    assert_eq!(
        flat,
        ["activate.rs", "config.rs", "interface.rs", "lib.rs"].map(str::to_owned).into()
    );
}

/// Each part of `validate` has a fault that it sees, and each test of one exists.
#[test]
fn every_part_of_validate_has_a_fault_that_makes_it_fail() {
    let text = read("docs/validation.md");
    let (_, table) = text.split_once("| part | the fault |").expect("its table");
    let table = table.split("\n\n").next().unwrap_or_default();
    let mut parts = BTreeSet::new();
    for row in table.lines().filter_map(cells) {
        let Ok(part) = row[0].parse::<u8>() else { continue };
        let named: Vec<_> = row[row.len() - 1].split('`').skip(1).step_by(2).collect();
        let [file, name] = named[..] else { panic!("part {part} names no file and no test") };
        assert!(read(file).contains(&format!("fn {name}(")), "{file}: no test `{name}`");
        parts.insert(part);
    }
    assert_eq!(parts, (1..=10).collect(), "parts with a fault");
}

/// The languages of what is fenced in comments that document items.
fn fenced(source: &str) -> Vec<&str> {
    let lines = source.lines().map(str::trim_start);
    let comments =
        lines.filter_map(|line| line.strip_prefix("///").or_else(|| line.strip_prefix("//!")));
    let fences = comments.filter_map(|line| line.trim_start().strip_prefix("```"));
    // Every second one closes.
    fences.step_by(2).map(str::trim).collect()
}

/// `make test` leaves out what rustdoc would run, for there is nothing: whoever shows code makes it a
/// test, or a file of `examples/`, which clippy looks at.
#[test]
fn comments_have_no_code_that_nobody_runs() {
    assert_eq!(
        fenced("/// ```text\n/// a\n/// ```\n    //! ```\n    //! b\n//! ```\n"),
        ["text", ""]
    );
    let (mut files, mut found, mut fences) = (Vec::new(), Vec::new(), 0);
    for directory in ["crates", "bench", "tests"] {
        let all = fs::read_dir(root().join(directory)).unwrap().flatten();
        for root in all.map(|krate| krate.path().join("src")).filter(|root| root.is_dir()) {
            sources(&root, &mut files);
        }
    }
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let languages = fenced(&text);
        fences += languages.len();
        let code = languages.iter().filter(|language| !["text", "toml"].contains(language));
        found.extend(code.map(|language| format!("{}: `{language}`", file.display())));
    }
    assert!(fences > 4, "only {fences} were found");
    assert!(found.is_empty(), "code in comments, which nobody runs:\n{}", found.join("\n"));
}

/// A heading as links name it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// Headings outside of blocks of code.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut fenced = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        fenced ^= line.starts_with("```");
        let level = line.chars().take_while(|c| *c == '#').count();
        if !fenced && level > 0 && line[level..].starts_with(' ') {
            found.insert(anchor(line[level..].trim()));
        }
    }
    found
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut dead = Vec::new();
    let mut followed = 0;
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for target in between(&text, "](", ")") {
            if target.contains("://") || target.contains(char::is_whitespace) {
                continue;
            }
            let (path, fragment) = target.split_once('#').unwrap_or((target, ""));
            let place = document.parent().unwrap().join(path);
            let place = if path.is_empty() { document.clone() } else { place };
            let leads = place.exists()
                && (fragment.is_empty()
                    || fs::read_to_string(&place)
                        .is_ok_and(|text| anchors(&text).contains(fragment)));
            followed += 1;
            if !leads {
                dead.push(format!("{}: {target}", document.display()));
            }
        }
    }
    assert!(followed > 200, "only {followed} links were found");
    assert!(dead.is_empty(), "{}", dead.join("\n"));
}

#[test]
fn the_first_screen_is_one() {
    let lines = read("README.md").lines().count();
    assert!(lines <= 180, "README.md has {lines} lines");
}

/// The verbs that a help text lists.
fn verbs(help: &str) -> Vec<String> {
    let text = read(&format!("crates/cli/tests/help/{help}.txt"));
    let (_, list) = text.split_once("\nCommands:\n").expect("a list of verbs");
    let list = list.lines().take_while(|line| !line.is_empty());
    // What stands further in is the rest of a description.
    let first = list.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let verbs = first.filter(|verb| !verb.is_empty() && *verb != "help");
    verbs.map(str::to_owned).collect()
}

/// Words of the first cells of the tables in a text.
fn first_words(text: &str) -> BTreeSet<&str> {
    let cells = text.lines().filter_map(cells).map(|row| row[0]);
    cells.flat_map(|cell| cell.split(|c: char| !c.is_ascii_alphanumeric())).collect()
}

/// A reader finds each verb in the table of verbs, on the first screen, and among what works.
#[test]
fn every_verb_is_in_the_tables_of_verbs_and_of_what_works() {
    let verbs = verbs("terrace");
    assert!(verbs.len() > 25, "only {verbs:?} were found");
    let (all, readme, features) =
        (read("docs/cli.md"), read("README.md"), read("docs/features.md"));
    let works = readme.split_once("\n## What works\n").expect("what works").1;
    let works = works.split("\n## ").next().unwrap_or_default();
    let mut missing = Vec::new();
    for (place, text) in
        [("docs/cli.md", &*all), ("README.md", works), ("docs/features.md", &*features)]
    {
        let words = first_words(text);
        let not_there = verbs.iter().filter(|verb| !words.contains(verb.as_str()));
        missing.extend(not_there.map(|verb| format!("{place}: `{verb}` has no row")));
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

/// System services, and what acts on programs from outside: each verb of theirs is in commands of a
/// document that tests run. (`profile refine` wants counters that hardly any machine of the tests
/// has.)
#[test]
fn commands_that_the_tests_run_show_every_verb_of_services() {
    let mut shown: Vec<String> =
        between(&read("docs/examples.md"), "```sh\n", "```").map(str::to_owned).collect();
    for (page, name) in [
        ("docs/kloc.md", "kloc"),
        ("docs/kloc.md", "calibrate-kernel"),
        ("docs/profile.md", "profile"),
        ("docs/volume.md", "volume"),
    ] {
        let block = format!("<!-- example: {name} -->\n```sh\n");
        shown.extend(between(&read(page), &block, "```").map(str::to_owned));
    }
    // tests/provision.rs runs what stands in lines and in sentences of this one.
    shown.push(read("docs/provision.md"));

    let mut wanted: Vec<String> = ["govern", "freeze", "thaw", "attach --engine kernel", "clean"]
        .into_iter()
        .chain(["calibrate", "calibrate kernel"])
        .chain(["profile record", "profile show", "profile diff", "profile merge"])
        .chain(["profile import", "profile export"])
        .map(str::to_owned)
        .collect();
    for service in ["kloc", "provision", "volume"] {
        wanted.extend(verbs(service).iter().map(|verb| format!("{service} {verb}")));
    }
    assert!(wanted.len() > 30, "only {wanted:?}");
    let is_shown = |verb: &String| {
        let (one, last) = (format!("terrace {verb} "), format!("terrace {verb}\n"));
        shown.iter().any(|text| text.contains(&one) || text.contains(&last))
    };
    let missing: Vec<_> = wanted.iter().filter(|verb| !is_shown(verb)).collect();
    assert!(missing.is_empty(), "in no command that the tests run: {missing:?}");
}
