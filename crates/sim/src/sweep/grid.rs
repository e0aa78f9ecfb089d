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
use terrace_core::machine::parse_document;
use thiserror::Error;

use super::point::{Point, is_known};

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
            grid.set(&name, values)?;
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
        Ok(())
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
        all.into_iter()
            .map(|parameters| {
                let point = Point { parameters };
                point.check().map_err(|message| GridError::Parameter {
                    parameter: format!("grid point {point}"),
                    message,
                })?;
                Ok(point)
            })
            .collect()
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

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let error = |text: &str| Grid::parse("g.toml", text).expect_err("bad").to_string();
        let unknown = error("schema = 1\n[grid]\nsize = \"8MiB\"\ncolour = [\"red\"]\n");
        assert!(unknown.contains("g.toml:4") && unknown.contains("colour"), "{unknown}");
        assert!(error("schema = 2\n[grid]\n").contains("schema"));
        assert!(error("schema = 1\n[grid]\nseed = []\n").contains("needs a value"));
        assert!(error("schema = 1\n[grid]\nseed = [1, 1]\n").contains("twice"));
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
