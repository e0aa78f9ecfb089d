//! The command line as data.

use std::any::TypeId;
use std::error::Error as _;
use std::ffi::OsString;
use std::num::{ParseFloatError, ParseIntError};
use std::ops::RangeInclusive;
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, StringValueParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, FromArgMatches, Parser, Subcommand};
use terrace_core::Bytes;
use terrace_economics::Mode;

use crate::failure::Failure;
use crate::output;
use crate::{
    attach, broker, calibrate, check, clean, compare, completions, convert, core_dump, crash,
    doctor, effects, freeze, govern, kloc, man, metrics, plan, profile, provision, record, replay,
    report, reproduce, run, set, sim, sweep, top, validate, volume, why,
};

/// Runs programs in less memory than they ask for, and simulates how memory
/// tiers are best used.
///
/// Exit codes: 0 done, 1 failed, 2 wrong usage or bad input, 3 not supported
/// on this machine. `terrace run` passes the program's own exit status through.
#[derive(Debug, Parser)]
#[command(
    name = "terrace",
    version,
    subcommand_required = true,
    arg_required_else_help = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    /// Print JSON instead of text for people.
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Run(run::Args),
    Set(set::Args),
    Broker(broker::Args),
    Attach(attach::Args),
    Govern(govern::Args),
    Kloc(kloc::Args),
    Top(top::Args),
    Report(report::Args),
    Replay(replay::Args),
    Metrics(metrics::Args),
    Record(record::Args),
    Convert(convert::Args),
    Sim(sim::Args),
    Compare(compare::Args),
    Sweep(sweep::Args),
    Plan(plan::Args),
    Profile(profile::Args),
    Provision(provision::Args),
    Crash(crash::Args),
    Reproduce(reproduce::Args),
    Validate(validate::Args),
    Volume(volume::Args),
    Calibrate(calibrate::Args),
    Doctor(doctor::Args),
    Clean(clean::Args),
    Freeze(freeze::FreezeArgs),
    Thaw(freeze::ThawArgs),
    Why(why::Args),
    Core(core_dump::Args),
    Check(check::Args),
    Completions(completions::Args),
    Man(man::Args),
}

impl Cli {
    /// Does what was asked for.
    pub(crate) fn execute(self) -> Result<ExitCode, Failure> {
        let json = self.json;
        room_for_threads()?;
        match self.verb {
            Verb::Run(args) => args.execute(json),
            Verb::Set(args) => args.execute(json),
            Verb::Broker(args) => args.execute(json),
            Verb::Attach(args) => args.execute(json),
            Verb::Govern(args) => args.execute(json),
            Verb::Kloc(args) => args.execute(json),
            Verb::Top(args) => args.execute(json),
            Verb::Report(args) => args.execute(json),
            Verb::Replay(args) => args.execute(json),
            Verb::Metrics(args) => args.execute(json),
            Verb::Record(args) => args.execute(json),
            Verb::Convert(args) => args.execute(json),
            Verb::Sim(args) => args.execute(json),
            Verb::Compare(args) => args.execute(json),
            Verb::Sweep(args) => args.execute(json),
            Verb::Plan(args) => args.execute(json),
            Verb::Profile(args) => args.execute(json),
            Verb::Provision(args) => args.execute(json),
            Verb::Crash(args) => args.execute(json),
            Verb::Reproduce(args) => args.execute(json),
            Verb::Validate(args) => args.execute(json),
            Verb::Volume(args) => args.execute(json),
            Verb::Calibrate(args) => args.execute(json),
            Verb::Doctor(args) => args.execute(json),
            Verb::Clean(args) => args.execute(json),
            Verb::Freeze(args) => args.execute(json),
            Verb::Thaw(args) => args.execute(json),
            Verb::Why(args) => args.execute(json),
            Verb::Core(args) => args.execute(json),
            Verb::Check(args) => args.execute(json),
            Verb::Completions(args) => args.execute(json),
            Verb::Man(args) => args.execute(json),
        }
    }
}

/// Refuses to begin where a limit leaves too little memory for a command's own threads. A thread that
/// starts maps a stack of 2 MiB, and aborts the whole command where the rest of what it needs is
/// refused: the language's library leaves no other way.
fn room_for_threads() -> Result<(), Failure> {
    /// Ten threads, as many as `run` has with the kernel engine, and a little heap.
    const ROOM: u64 = 24 << 20;
    match terrace_live::sys::limits::address_space_left() {
        Some(left) if left < ROOM => Err(Failure::failed(format!(
            "a limit (`ulimit -v`, `ulimit -d`) leaves {} of private memory, and threads of Terrace's own \
             need {}",
            Bytes(left),
            Bytes(ROOM)
        ))),
        _ => Ok(()),
    }
}

/// Reads a command line.
/// Where an option of it would do nothing it is refused.
pub(crate) fn parse(arguments: &[OsString]) -> Result<Result<Cli, Failure>, clap::Error> {
    let command = command();
    let matches = command.clone().try_get_matches_from(arguments)?;
    let cli = Cli::from_arg_matches(&matches)?;
    Ok(effects::check(&command, &matches).map(|()| cli))
}

/// The command line, on which a negative number is a value, though none is allowed anywhere: who
/// reads values can say which ones are.
fn command() -> Command {
    fn negative(command: Command) -> Command {
        command
            .mut_args(|arg| {
                let is_option = arg.get_long().is_some() && arg.get_action().takes_values();
                if is_option { arg.allow_negative_numbers(true) } else { arg }
            })
            .mut_subcommands(negative)
    }
    negative(Cli::command())
}

/// A negative quantity looks like an option: the same command line with it as the value of the
/// option that it stands behind.
fn with_value(arguments: &[OsString], wrong: &str) -> Option<Vec<OsString>> {
    let is_negative = |text: &str| {
        text.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let is_it = |text: &OsString| {
        text.to_str().is_some_and(|text| is_negative(text) && text.starts_with(wrong))
    };
    let value = arguments.iter().position(is_it)?;
    let option = arguments.get(value.checked_sub(1)?)?.to_str()?;
    if !option.starts_with("--") || option.contains('=') {
        return None;
    }
    let mut joined = arguments.to_vec();
    joined[value - 1] = format!("{option}={}", joined[value].to_str()?).into();
    joined.remove(value);
    Some(joined)
}

/// What a number must be, from the type that an option has.
fn expected(argument: &str) -> Option<String> {
    fn find(command: &Command, argument: &str) -> Option<TypeId> {
        let known = [
            TypeId::of::<u8>(),
            TypeId::of::<u32>(),
            TypeId::of::<u64>(),
            TypeId::of::<usize>(),
            TypeId::of::<f64>(),
        ];
        let own = command.get_arguments().find(|arg| arg.to_string() == argument);
        let own = own.map(|arg| arg.get_value_parser().type_id());
        own.and_then(|own| known.into_iter().find(|known| own == *known))
            .or_else(|| command.get_subcommands().find_map(|verb| find(verb, argument)))
    }
    let mut command = Cli::command();
    // What an argument is called is known then.
    command.build();
    let number = find(&command, argument)?;
    if number == TypeId::of::<f64>() {
        return Some("a number".to_owned());
    }
    let most = match number {
        number if number == TypeId::of::<u8>() => u64::from(u8::MAX),
        number if number == TypeId::of::<u32>() => u64::from(u32::MAX),
        _ => u64::MAX,
    };
    Some(format!("a whole number from 0 to {most}"))
}

/// What a command line that was not understood (or asked for help) leads to.
pub(crate) fn explain(error: &clap::Error, arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let named = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => "",
    };
    if error.kind() == ErrorKind::UnknownArgument
        && let Some(joined) = with_value(arguments, named(ContextKind::InvalidArg))
        && let Err(better) = parse(&joined)
        && better.kind() == ErrorKind::ValueValidation
    {
        return explain(&better, &joined);
    }
    let source = error.source();
    if source.is_some_and(|e| e.is::<ParseIntError>() || e.is::<ParseFloatError>())
        && let Some(expected) = expected(named(ContextKind::InvalidArg))
    {
        return Err(Failure::BadInput(format!(
            "invalid value '{}' for '{}': expected {expected}",
            named(ContextKind::InvalidValue),
            named(ContextKind::InvalidArg)
        )));
    }
    if error.kind() == ErrorKind::InvalidUtf8
        && let Some(what) = not_text(arguments)
    {
        return Err(Failure::BadInput(what));
    }
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            output::print(&error.render().to_string())?;
            Ok(ExitCode::SUCCESS)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            output::show(&error.render().to_string());
            Ok(ExitCode::from(2))
        }
        _ => Err(Failure::BadInput(summary(&error.render().to_string()))),
    }
}

/// Which argument is no text where it has to be one; not every one that is none, for paths need not be.
fn not_text(arguments: &[OsString]) -> Option<String> {
    let mut tried = arguments.to_vec();
    let wrong = (1..arguments.len()).find(|&at| {
        if tried[at].to_str().is_some() {
            return false;
        }
        tried[at] = tried[at].to_string_lossy().into_owned().into();
        // It was the last one, if what is wrong is another thing now, or nothing.
        !matches!(parse(&tried), Err(error) if error.kind() == ErrorKind::InvalidUtf8)
    })?;
    let argument = arguments[wrong].to_string_lossy();
    let before = arguments[wrong - 1].to_str().filter(|before| before.starts_with('-'));
    Some(match (argument.split_once('='), before) {
        (Some((option, value)), _) if option.starts_with("--") => {
            format!("invalid value '{value}' for '{option}': it is not text (UTF-8)")
        }
        (_, Some(option)) => {
            format!("invalid value '{argument}' for '{option}': it is not text (UTF-8)")
        }
        _ => format!("invalid argument '{argument}': it is not text (UTF-8)"),
    })
}

/// What is wrong, without clap's prefix, usage and pointer to the help.
fn summary(rendered: &str) -> String {
    let text = rendered.strip_prefix("error: ").unwrap_or(rendered);
    let end = ["\nUsage:", "\nFor more information"]
        .iter()
        .filter_map(|mark| text.find(mark))
        .min()
        .unwrap_or(text.len());
    text[..end].to_owned()
}

/// A parser for a whole number within bounds.
pub(crate) fn whole(bounds: RangeInclusive<u64>) -> impl TypedValueParser<Value = u64> {
    let (least, most) = bounds.into_inner();
    StringValueParser::new().try_map(move |text| {
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| format!("expected a whole number from {least} to {most}"))
    })
}

/// A parser for one of a closed set of names, which help and completions list.
pub(crate) fn one_of<T>(
    all: &'static [T],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    PossibleValuesParser::new(all.iter().copied().map(name)).map(move |text| {
        // The parser before has let only names of `all` pass.
        *all.iter().find(|item| name(**item) == text).unwrap_or(&all[0])
    })
}

/// What a mode of the economist is called.
pub(crate) fn mode_name(mode: Mode) -> &'static str {
    mode.name()
}

/// A parser for a mode of the economist.
pub(crate) fn economist() -> impl TypedValueParser<Value = Mode> {
    one_of(&Mode::ALL, Mode::name)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    /// Values that no option of a number takes.
    #[test]
    fn every_number_says_what_it_may_be() {
        fn each(path: &[String], command: &Command, tried: &mut usize) {
            for arg in command.get_arguments().filter(|arg| arg.get_long().is_some()) {
                let numbers = [
                    TypeId::of::<u8>(),
                    TypeId::of::<u32>(),
                    TypeId::of::<u64>(),
                    TypeId::of::<usize>(),
                ];
                let parser = arg.get_value_parser().type_id();
                if !numbers.iter().any(|number| parser == *number) {
                    continue;
                }
                *tried += 1;
                for value in ["-1", "1.5", "many", "99999999999999999999"] {
                    let mut line = path.to_vec();
                    line.extend([format!("--{}", arg.get_long().unwrap()), value.to_owned()]);
                    let line: Vec<OsString> = line.into_iter().map(OsString::from).collect();
                    let error = parse(&line).unwrap_err();
                    let Err(Failure::BadInput(message)) = explain(&error, &line) else {
                        panic!("{line:?}: {error}")
                    };
                    let says = message.contains(value)
                        && (message.contains("expected a whole number from ")
                            || message.contains(" is not in ") && message.contains(".."));
                    assert!(says, "{line:?}: {message}");
                }
            }
            for verb in command.get_subcommands() {
                each(&[path, &[verb.get_name().to_owned()]].concat(), verb, tried);
            }
        }
        let mut tried = 0;
        each(&["terrace".to_owned()], &Cli::command(), &mut tried);
        assert!(tried > 20, "only {tried} numbers were found");
    }

    #[test]
    fn a_negative_quantity_is_a_value_and_not_an_option() {
        for line in ["run --fast -1MiB true", "attach --pid 1 --for -1s --fast numa:0 --slow swap"]
        {
            let line: Vec<OsString> =
                ["terrace"].into_iter().chain(line.split(' ')).map(OsString::from).collect();
            let error = parse(&line).unwrap_err();
            let Err(Failure::BadInput(message)) = explain(&error, &line) else { panic!("{error}") };
            assert!(message.contains("is negative; the least is 0"), "{message}");
        }
        // What stands behind a program is the program's.
        let line = ["terrace", "run", "--fast", "1MiB", "head", "-5"].map(OsString::from);
        assert!(parse(&line).is_ok());
    }

    /// A path may be of any bytes, and is not blamed for what another argument is.
    #[test]
    fn an_argument_that_is_no_text_is_named() {
        use std::os::unix::ffi::OsStringExt;

        // A byte that is in no text for each question mark.
        let broken = |text: &str| {
            let bytes = text.bytes().map(|byte| if byte == b'?' { 0xff } else { byte });
            OsString::from_vec(bytes.collect())
        };
        for (line, named) in [
            ("run --fast ? -- true", "'\u{fffd}' for '--fast'"),
            ("run --fast=1? -- true", "'1\u{fffd}' for '--fast'"),
            ("run --report r? --fast ? -- true?", "'\u{fffd}' for '--fast'"),
            ("run --fast ? --report r? -- true?", "'\u{fffd}' for '--fast'"),
            ("set ? --fast 1MiB", "invalid argument '\u{fffd}'"),
        ] {
            let line: Vec<OsString> =
                ["terrace"].into_iter().chain(line.split(' ')).map(broken).collect();
            let error = parse(&line).unwrap_err();
            let Err(Failure::BadInput(message)) = explain(&error, &line) else { panic!("{error}") };
            assert!(message.contains(named) && message.contains("UTF-8"), "{line:?}: {message}");
        }
        let line = ["terrace", "run", "--fast", "1MiB", "--report", "r?", "true?"].map(broken);
        assert!(parse(&line).is_ok());
    }

    /// README.md, and what is written beside the documents, benches, ladders and machines.
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
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut found = vec![root.join("README.md")];
        for directory in ["docs", "bench", "ladders", "machines"] {
            below(&root.join(directory), &mut found);
        }
        found
    }

    /// The lines of a document's blocks of code, those that go on joined.
    fn code(document: &str) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        let mut fenced = false;
        let mut goes_on = false;
        for line in document.lines() {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
            } else if fenced || line.starts_with("    ") {
                let text = line.trim().trim_end_matches('\\');
                match lines.last_mut().filter(|_| goes_on) {
                    Some(last) => *last += text,
                    None => lines.push(text.to_owned()),
                }
                goes_on = line.ends_with('\\');
            }
        }
        lines
    }

    /// The words of a shell command, up to what is the shell's business; what the shell
    /// would put in is a policy where it is called so, an address, or else a number.
    fn words(command: &str) -> Vec<String> {
        let mut words = Vec::new();
        let mut word: Option<String> = None;
        let mut quote = None;
        let mut letters = command.chars().peekable();
        while let Some(letter) = letters.next() {
            match (quote, letter) {
                (Some(open), _) if letter == open => quote = None,
                (None, '\'' | '"') => {
                    quote = Some(letter);
                    word.get_or_insert_default();
                }
                (None, ' ') => words.extend(word.take()),
                (None, '&' | '|' | ';' | '>' | '<' | ')') => break,
                (None, '#') if word.is_none() => break,
                (None, '$') => {
                    let inner = letters.next_if_eq(&'(').is_some();
                    let goes_on =
                        |c: &char| if inner { *c != ')' } else { c.is_alphanumeric() || *c == '!' };
                    let mut name = String::new();
                    while let Some(letter) = letters.next_if(goes_on) {
                        name.push(letter);
                    }
                    letters.next_if(|_| inner);
                    word.get_or_insert_default().push_str(match name.as_str() {
                        "policy" => "2q",
                        name if name.starts_with("printf 0x") => "0x1",
                        _ => "1",
                    });
                }
                _ => word.get_or_insert_default().push(letter),
            }
        }
        words.extend(word);
        words
    }

    /// Every command that a document shows is one: an option that was renamed, or never
    /// there, must not go on living in the text.
    #[test]
    fn every_command_in_the_documents_is_understood() {
        let mut understood = 0;
        let mut wrong = Vec::new();
        for document in documents() {
            let text = fs::read_to_string(&document).unwrap();
            for line in code(&text) {
                let command = line.strip_prefix("$ ").unwrap_or(&line);
                // `terrace top [PID]` says what there is, and is not to be typed.
                if !command.starts_with("terrace ") || command.contains(['[', '…']) {
                    continue;
                }
                let definition = Cli::command();
                match definition.clone().try_get_matches_from(words(command)) {
                    Ok(matches) => match effects::check(&definition, &matches) {
                        Ok(()) => understood += 1,
                        Err(failure) => wrong.push(format!(
                            "{}: {command}\n    {}",
                            document.display(),
                            failure.message()
                        )),
                    },
                    Err(e) if matches!(e.kind(), ErrorKind::DisplayHelp) => understood += 1,
                    Err(e) => wrong.push(format!(
                        "{}: {command}\n    {}",
                        document.display(),
                        summary(&e.render().to_string())
                    )),
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(understood > 70, "only {understood} commands were found");
    }

    #[test]
    fn every_verb_is_in_the_document_about_the_command_line() {
        let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
        let document = fs::read_to_string(document).unwrap();
        for verb in Cli::command().get_subcommands() {
            let name = verb.get_name();
            let row = document.lines().any(|line| {
                line.starts_with('|')
                    && line
                        .split('|')
                        .nth(1)
                        .is_some_and(|cell| cell.contains(&format!("`{name}`")))
            });
            assert!(row, "`{name}` is not in the table of docs/cli.md");
        }
    }

    #[test]
    fn a_command_ends_where_the_shell_takes_over() {
        let is =
            |command: &str, expected: &[&str]| assert_eq!(words(command), expected, "{command}");
        is("terrace top $run --watch # a line", &["terrace", "top", "1", "--watch"]);
        is("terrace why $(printf 0x%x 3) --of $! | head", &["terrace", "why", "0x1", "--of", "1"]);
        is("terrace run -- sh -c 'a & b' >x", &["terrace", "run", "--", "sh", "-c", "a & b"]);
    }
}
