//! The tables as text.

use core::fmt;

use terrace_core::ObjectKind;
use terrace_kloc::policy::Strategy;

use super::{GROUPS, KlocsTable, Origin, Run, SWEPT};
use crate::kernel::Class;
use crate::kernel::programs::Program;

impl fmt::Display for KlocsTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "KLOCs on {}; {}", self.machine, self.sources())?;
        self.origins(f)?;
        self.figure_2(f)?;
        self.objects(f)?;
        self.figure_4(f)?;
        self.figure_5a(f)?;
        self.figure_5(f)?;
        self.prefetching(f)?;
        self.figure_6(f)?;
        writeln!(f, "\nTable 6: memory of the structures (paper: 12 to 101 MB, below 1 %)")?;
        writeln!(f, "{:>10}  {:>12}  {:>8}  {:>14}", "", "bytes", "share", "lookups saved")?;
        for row in &self.structures {
            writeln!(
                f,
                "{:>10}  {:>12}  {:>6.2} %  {:>12.0} %",
                row.program.name(),
                row.bytes.to_string(),
                row.share * 100.0,
                row.saved * 100.0
            )?;
        }
        writeln!(f)?;
        for claim in &self.claims {
            writeln!(f, "{claim}")?;
        }
        Ok(())
    }
}

impl KlocsTable {
    /// Which programs' calls were recorded, and which are made up.
    pub fn sources(&self) -> String {
        let names = |recorded: bool| {
            let some = self.programs.iter().filter(|of| of.recorded.is_some() == recorded);
            let names: Vec<&str> = some.map(|of| of.program.name()).collect();
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        };
        format!("recorded: {}; generated: {}", names(true), names(false))
    }

    /// How much each program's calls stand for.
    fn origins(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.programs.iter().any(|of| of.recorded.is_none()) {
            writeln!(
                f,
                "Generated calls are made up in the shape of the programs; memories and data are a \
                 {}th of the paper's.",
                self.scale
            )?;
        }
        if self.programs.iter().any(|of| of.recorded.is_some()) {
            writeln!(
                f,
                "Recorded calls are replayed without the program's own memory. Their first half is \
                 preparation. Memories\nare as much smaller than the paper's as the files are \
                 smaller than its data."
            )?;
        }
        for Origin { program, scale, recorded } in &self.programs {
            let Some(facts) = recorded else { continue };
            writeln!(
                f,
                "{:>10}  {}: {} calls of {} threads, {} measured; {} of files, memories 1:{scale}",
                program.name(),
                facts.command,
                facts.calls,
                facts.threads,
                facts.measured,
                facts.footprint
            )?;
            for (count, what) in [
                (facts.lost, "events were lost while it was recorded"),
                (facts.left_out, "accesses to mappings are left out: no write was seen there"),
            ] {
                if count > 0 {
                    writeln!(f, "{:>10}  {count} {what}", "")?;
                }
            }
        }
        Ok(())
    }

    fn figure_2(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nFigure 2: pages, references and lifetimes (all memory fast)")?;
        write!(f, "{:>10}  {:>6}  {:>9}", "", "data", "pages")?;
        for class in Class::ALL {
            write!(f, "  {:>14}", class.name())?;
        }
        writeln!(f)?;
        for row in &self.footprints {
            let pages: u64 = row.pages.iter().sum();
            let lines: u64 = row.references.iter().sum();
            write!(f, "{:>10}  {:>6}  {pages:>9}", row.program.name(), row.data.to_string())?;
            for n in row.pages {
                write!(f, "  {:>12.1} %", n as f64 * 100.0 / pages.max(1) as f64)?;
            }
            write!(f, "\n{:>10}  {:>17}", "", "references")?;
            for n in row.references {
                write!(f, "  {:>12.1} %", n as f64 * 100.0 / lines.max(1) as f64)?;
            }
            write!(f, "\n{:>10}  {:>17}", "", "mean life")?;
            for ms in row.all_ms {
                match ms {
                    Some(ms) => write!(f, "  {ms:>11.1} ms")?,
                    None => write!(f, "  {:>14}", "-")?,
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }

    /// Figure 2, by kind of object: a table for each size of data.
    fn objects(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nFigure 2 by kind: objects that were allocated, those freed since included")?;
        for rows in self.footprints.chunk_by(|a, b| a.data == b.data) {
            write!(f, "{:>18}", rows[0].data.to_string())?;
            for row in rows {
                write!(f, "  {:>10}", row.program.name())?;
            }
            writeln!(f)?;
            for kind in ObjectKind::ALL {
                write!(f, "{:>18}", kind.name())?;
                for row in rows {
                    write!(f, "  {:>10}", row.objects[kind.index()])?;
                }
                writeln!(f)?;
            }
        }
        Ok(())
    }

    fn figure_4(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nFigure 4: speedup over all in slow memory")?;
        write!(f, "{:>18}", "")?;
        for program in Program::ALL {
            write!(f, "  {:>10}", program.name())?;
        }
        writeln!(f)?;
        for strategy in Strategy::ALL {
            write!(f, "{:>18}", strategy.name())?;
            for program in Program::ALL {
                let of = |run: &&Run| run.program == program && run.strategy == strategy.name();
                let speedup = self.runs.iter().find(of).map_or(f64::NAN, |run| run.speedup);
                write!(f, "  {speedup:>10.2}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }

    fn figure_5a(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\nFigure 5a: two sockets in Memory Mode, one disturbed; speedup over all memory at the\n\
             disturbed socket (pages that followed the program)"
        )?;
        write!(f, "{:>18}", "")?;
        for program in Program::ALL {
            write!(f, "  {:>14}", program.name())?;
        }
        writeln!(f)?;
        for strategy in Strategy::SOCKETS {
            let name = match strategy {
                Strategy::AllSlow => "all remote",
                Strategy::AllFast => "all local",
                other => other.name(),
            };
            write!(f, "{name:>18}")?;
            for row in self.sockets.iter().filter(|row| row.strategy == strategy.name()) {
                let moved: u64 = row.moved.iter().sum();
                write!(f, "  {:>5.2} {:>8}", row.speedup, format!("({moved})"))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }

    fn prefetching(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nSection 7.3: thousand operations a second without and with read-ahead")?;
        for row in &self.prefetched {
            let [without, with] = row.throughput;
            writeln!(
                f,
                "{:>10}  {:>16}  {:>8.1}  {:>8.1}  ({:.2})  {:>8} pages up",
                row.program.name(),
                row.strategy,
                without / 1e3,
                with / 1e3,
                with / without,
                row.promoted
            )?;
        }
        Ok(())
    }

    fn figure_5(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nFigure 5b: RocksDB's pages in slow memory, and moves")?;
        writeln!(
            f,
            "{:>18}  {:>12}  {:>10}  {:>10}  {:>10}",
            "", "page cache", "slab", "down", "up"
        )?;
        for run in self.runs.iter().filter(|run| run.program == Program::RocksDb) {
            writeln!(
                f,
                "{:>18}  {:>12}  {:>10}  {:>10}  {:>10}",
                run.strategy,
                run.slow_pages[0],
                run.slow_pages[1],
                run.demoted.iter().sum::<u64>(),
                run.promoted.iter().sum::<u64>()
            )?;
        }
        writeln!(f, "\nFigure 5c: KLOCs that knows more and more kinds, over all in slow memory")?;
        write!(f, "{:>18}", "")?;
        for program in Program::ALL {
            write!(f, "  {:>10}", program.name())?;
        }
        writeln!(f)?;
        for (name, _) in GROUPS {
            write!(f, "{name:>18}")?;
            for row in self.kinds.iter().filter(|row| row.kinds == name) {
                write!(f, "  {:>10.2}", row.speedup)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }

    fn figure_6(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nFigure 6: speedup over all in slow memory, mean (least to most)")?;
        write!(f, "{:>6}  {:>9}", "fast", "bandwidth")?;
        for strategy in &SWEPT[1..] {
            write!(f, "  {:>19}", strategy.name())?;
        }
        writeln!(f)?;
        for row in self.points.chunks(SWEPT.len() - 1) {
            let Some(first) = row.first() else { continue };
            write!(f, "{:>6}  {:>9}", first.fast.to_string(), format!("1:{}", first.ratio))?;
            for point in row {
                let range = format!("({:.2} to {:.2})", point.least, point.most);
                write!(f, "  {:>4.2} {range:>14}", point.mean)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use terrace_core::Bytes;

    use super::super::Footprint;
    use super::*;

    /// Objects of all eleven kinds are printed, for each program and size of data.
    #[test]
    fn objects_are_printed_by_kind() {
        let row = |program, data, first: u64| Footprint {
            program,
            data,
            pages: [1; 4],
            references: [1; 4],
            freed_ms: [None; 4],
            all_ms: [None; 4],
            objects: core::array::from_fn(|kind| first + kind as u64),
        };
        let (large, small) = (Bytes::gib(40), Bytes::gib(10));
        let table = KlocsTable {
            schema: 1,
            machine: "x".to_owned(),
            scale: 512,
            programs: Vec::new(),
            footprints: vec![
                row(Program::RocksDb, large, 1000),
                row(Program::Redis, large, 2000),
                row(Program::RocksDb, small, 3000),
            ],
            runs: Vec::new(),
            sockets: Vec::new(),
            prefetched: Vec::new(),
            kinds: Vec::new(),
            points: Vec::new(),
            structures: Vec::new(),
            claims: Vec::new(),
        };
        let text = table.to_string();
        let (_, text) = text.split_once("Figure 2 by kind").expect("it is there");
        for kind in ObjectKind::ALL {
            // One name may be the beginning of another's.
            let begin = format!("{}  ", kind.name());
            let lines = text.lines().filter(|line| line.trim_start().starts_with(&begin));
            let numbers = lines.map(|line| {
                line.split_whitespace()
                    .rev()
                    .take_while(|word| word.bytes().all(|byte| byte.is_ascii_digit()))
            });
            let numbers: Vec<&str> = numbers.flatten().collect();
            let number = |first: usize| (first + kind.index()).to_string();
            assert_eq!(numbers, [number(2000), number(1000), number(3000)], "{text}");
        }
    }
}
