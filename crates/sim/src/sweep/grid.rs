//! A grid: names of parameters, each with the values that it takes.
//!
//! ```toml
//! schema = 1
//!
//! [grid]
//! policy = ["first-touch", "hemem"]
//! machine = ["cxl"]
//! workload = ["gups", "gups-sparse", "sort.trace"]
//! fast = ["64MiB", "25%"]
//! size = "256MiB"
//! "cxl.read-latency" = ["170ns", "250ns", "400ns"]
//! ```

use std::collections::BTreeMap;

use serde::Deserialize;
use terrace_core::MachineError;
use terrace_core::machine::{line_of, parse_document};
use thiserror::Error;

use super::point::{Point, is_known};
use crate::error::SimError;

/// More combinations than anybody waits for.
const MOST: usize = 1_000_000;

/// Why a grid is none.
#[derive(Debug, Error)]
pub enum GridError {
    /// A grid file is wrong.
    #[error(transparent)]
    File(#[from] MachineError),
    /// A parameter makes no sense.
    #[error("{parameter}: {message}")]
    Parameter {
        /// Which.
        parameter: String,
        /// What is wrong with it.
        message: String,
    },
}

/// Parameters with their values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grid {
    axes: BTreeMap<String, Vec<String>>,
    /// Where parameters stand that come from a file.
    places: BTreeMap<String, Place>,
}

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    file: String,
    line: usize,
}

/// A value as a file may give it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Value {
    Text(String),
    Whole(i64),
    Real(f64),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Values {
    One(Value),
    Many(Vec<Value>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    schema: u32,
    grid: BTreeMap<String, Values>,
}

impl Value {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Whole(number) => number.to_string(),
            Self::Real(number) => number.to_string(),
        }
    }
}

impl Grid {
    /// Reads a grid file; `file` is its name for errors.
    pub fn parse(file: &str, text: &str) -> Result<Self, GridError> {
        let document: File = parse_document(file, text, |document: &File| {
            if document.schema != 1 {
                return Err(("schema".into(), format!("is {}, not 1", document.schema)));
            }
            let unknown = document.grid.keys().find(|name| !is_known(name));
            unknown.map_or(Ok(()), |name| {
                Err((format!("grid.{name}"), "is no parameter of a sweep".to_owned()))
            })
        })?;
        let mut grid = Self::default();
        for (name, values) in document.grid {
            let values: Vec<String> = match &values {
                Values::One(value) => vec![value.text()],
                Values::Many(values) => values.iter().map(Value::text).collect(),
            };
            // A name with a dot stands in quotes.
            let line = line_of(text, &format!("grid.{name}"))
                .or_else(|| line_of(text, &format!("grid.\"{name}\"")));
            let place = Place { file: file.to_owned(), line: line.unwrap_or(1) };
            let set = grid.set(&name, values);
            grid.places.insert(name.clone(), place);
            set.map_err(|error| grid.located(&name, error))?;
        }
        Ok(grid)
    }

    /// Gives a parameter its values, in place of those that it had.
    pub fn set(&mut self, name: &str, values: Vec<String>) -> Result<(), GridError> {
        let bad = |message: &str| GridError::Parameter {
            parameter: name.to_owned(),
            message: message.to_owned(),
        };
        if !is_known(name) {
            return Err(bad("is no parameter of a sweep"));
        }
        if values.is_empty() || values.iter().any(String::is_empty) {
            return Err(bad("needs a value"));
        }
        let mut seen = std::collections::HashSet::new();
        if let Some(twice) = values.iter().find(|value| !seen.insert(value.as_str())) {
            return Err(bad(&format!("has `{twice}` twice")));
        }
        self.axes.insert(name.to_owned(), values);
        self.places.remove(name);
        Ok(())
    }

    /// Which parameter an error is about, and what is wrong with it.
    fn blame(&self, wrong: &SimError) -> (String, String) {
        match wrong {
            // A value of the machine is named first in what is wrong with the machine.
            SimError::Parameter { parameter, message } => {
                let path = message.split_once(": ");
                match path.filter(|(path, _)| self.axes.contains_key(*path)) {
                    Some((path, rest)) => (path.to_owned(), rest.to_owned()),
                    None => ((*parameter).to_owned(), message.clone()),
                }
            }
            // The machine's file has no line of ours; one word of a field, as in
            // `tier.read-latency.value`, is a parameter's.
            SimError::Machine(error) => {
                let words = || error.field.iter().flat_map(|field| field.split('.'));
                let is_it = |name: &&String| {
                    name.split_once('.').is_some_and(|(_, key)| words().any(|word| word == key))
                };
                let parameter = self.axes.keys().find(is_it).cloned().unwrap_or_default();
                (parameter, error.message.clone())
            }
            other => (String::new(), other.to_string()),
        }
    }

    /// Names the line of the file that a parameter stands in, if it does.
    fn located(&self, name: &str, error: GridError) -> GridError {
        let message = match &error {
            GridError::Parameter { message, .. } => message.clone(),
            GridError::File(_) => return error,
        };
        match self.places.get(name) {
            Some(Place { file, line }) => GridError::File(MachineError {
                file: file.clone(),
                line: *line,
                field: Some(format!("grid.{name}")),
                message,
            }),
            None => error,
        }
    }

    /// Names of the parameters.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.axes.keys().map(String::as_str)
    }

    /// How many combinations it has; `None` for more than can be counted.
    pub fn combinations(&self) -> Option<usize> {
        self.axes.values().try_fold(1usize, |n, values| n.checked_mul(values.len()))
    }

    /// Every combination, checked as far as that is possible without running it.
    pub fn points(&self) -> Result<Vec<Point>, GridError> {
        if self.combinations().is_none_or(|count| count > MOST) {
            return Err(GridError::Parameter {
                parameter: "grid".into(),
                message: format!("has more than {MOST} combinations"),
            });
        }
        let mut all: Vec<BTreeMap<String, String>> = vec![BTreeMap::new()];
        for (name, values) in &self.axes {
            all = all
                .into_iter()
                .flat_map(|point| {
                    values.iter().map(move |value| {
                        let mut point = point.clone();
                        point.insert(name.clone(), value.clone());
                        point
                    })
                })
                .collect();
        }
        let points: Result<Vec<Point>, GridError> = all
            .into_iter()
            .map(|parameters| {
                let point = Point { parameters };
                point.check().map_err(|wrong| {
                    let (parameter, message) = self.blame(&wrong);
                    if self.places.contains_key(&parameter) {
                        let error = GridError::Parameter { parameter: parameter.clone(), message };
                        return self.located(&parameter, error);
                    }
                    let (parameter, message) = (format!("grid point {point}"), wrong.to_string());
                    GridError::Parameter { parameter, message }
                })?;
                Ok(point)
            })
            .collect();
        let points = points?;
        for name in self.axes.keys() {
            if !points.iter().any(|point| point.uses(name)) {
                let message = "has no effect on any of these policies and workloads".to_owned();
                let error = GridError::Parameter { parameter: name.clone(), message };
                return Err(self.located(name, error));
            }
        }
        Ok(points)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_is_every_combination() {
        let text = "schema = 1\n[grid]\npolicy = [\"hemem\", \"first-touch\"]\nsize = \"8MiB\"\n\
                    seed = [1, 2, 3]\n\"cxl.read-latency\" = [\"200ns\", \"300ns\"]\n";
        let grid = Grid::parse("grid.toml", text).expect("a grid");
        let points = grid.points().expect("good points");
        assert_eq!(points.len(), 12);
        let keys: std::collections::HashSet<String> =
            points.iter().map(ToString::to_string).collect();
        assert_eq!(keys.len(), 12, "no combination twice");
    }

    /// One that has an effect on some of the combinations is a parameter of all.
    #[test]
    fn a_parameter_without_any_effect_is_refused() {
        let points = |parameters: &[(&str, &str)]| {
            let mut grid = Grid::default();
            for (name, values) in parameters {
                let values = values.split(',').map(str::to_owned).collect();
                grid.set(name, values).expect("a parameter");
            }
            grid.points().map(|points| points.len()).map_err(|error| error.to_string())
        };
        for refused in [
            &[("sample-period", "5,50"), ("policy", "first-touch")][..],
            &[("sample-period", "5,50")],
            &[("economist", "off,enforce"), ("policy", "all-dram")],
            &[("hot", "1MiB"), ("workload", "bfs,stream")],
            &[("hot-percent", "50"), ("workload", "chase")],
            &[("seed", "1,2,3"), ("workload", "stream"), ("policy", "first-touch")],
        ] {
            let error = points(refused).expect_err("refused");
            assert!(error.starts_with(&format!("{}: has no effect", refused[0].0)), "{error}");
        }
        assert_eq!(points(&[("sample-period", "5,50"), ("policy", "first-touch,hemem")]), Ok(4));
        assert_eq!(points(&[("hot", "1MiB,2MiB"), ("workload", "bfs,gups")]), Ok(4));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let error = |text: &str| Grid::parse("g.toml", text).expect_err("bad").to_string();
        let unknown = error("schema = 1\n[grid]\nsize = \"8MiB\"\ncolour = [\"red\"]\n");
        assert!(unknown.contains("g.toml:4") && unknown.contains("colour"), "{unknown}");
        assert!(error("schema = 2\n[grid]\n").contains("schema"));
        let none = error("schema = 1\n[grid]\nseed = []\n");
        assert_eq!(none, "g.toml:3: field `grid.seed`: needs a value");
        assert!(error("schema = 1\n[grid]\nseed = [1, 1]\n").contains("twice"));
        for (name, value) in [
            ("size", "8"),
            ("policy", "hemen"),
            ("\"cxl.read-latency\"", "often"),
            ("workload", "/no/such.trace"),
            ("cores", "many"),
            ("seed", "-1"),
            ("accesses", "few"),
        ] {
            let text = format!("schema = 1\n[grid]\n# a comment\n{name} = \"{value}\"\n");
            let grid = Grid::parse("g.toml", &text).expect("a grid");
            let wrong = grid.points().expect_err("bad").to_string();
            let field = format!("g.toml:4: field `grid.{}`: ", name.trim_matches('"'));
            assert!(wrong.starts_with(&field) && wrong.contains(value), "{wrong}");
        }
        let point = |name: &str, value: &str| {
            let mut grid = Grid::default();
            grid.set(name, vec![value.to_owned()]).expect("a parameter");
            grid.points().expect_err("bad").to_string()
        };
        assert!(point("size", "8").contains("no unit"));
        assert!(point("policy", "hemen").contains("`hemen`"));
        assert!(point("tape.read-latency", "1ns").contains("tape"));
        assert!(point("cxl.read-latency", "often").contains("often"));
        assert!(point("workload", "/no/such.trace").contains("/no/such.trace"));
    }
}
