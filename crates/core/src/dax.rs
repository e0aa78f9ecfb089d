//! DAX devices by name. A DAX *device* (CXL memory, an NVDIMM) can be handed to the kernel as
//! memory, and is then a NUMA node whose pages stay mapped; a DAX *file* cannot be a tier of
//! that kind (decision 0012).

use core::fmt;
use core::str::FromStr;

use serde::Serialize;
use thiserror::Error;

/// A DAX device, `dax0.0`: the region (a range of physical memory that hosts devices), and the
/// device's number in it, as the kernel numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(into = "String")]
pub struct DaxDevice {
    /// The region.
    pub region: u32,
    /// The device in the region.
    pub instance: u32,
}

impl fmt::Display for DaxDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dax{}.{}", self.region, self.instance)
    }
}

impl From<DaxDevice> for String {
    fn from(device: DaxDevice) -> Self {
        device.to_string()
    }
}

/// A text that names no DAX device.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "`{0}` is not a DAX device such as `dax0.0` or `/dev/dax0.0` (a file on a file system with \
     DAX can hold compressed pages: `terrace run --spill dax:FILE`)"
)]
pub struct ParseDaxError(String);

/// `dax0.0`, or as the file that stands for it: `/dev/dax0.0`.
impl FromStr for DaxDevice {
    type Err = ParseDaxError;
    fn from_str(text: &str) -> Result<Self, ParseDaxError> {
        let numbers = || {
            let name = text.strip_prefix("/dev/").unwrap_or(text);
            let (region, instance) = name.strip_prefix("dax")?.split_once('.')?;
            Some(Self { region: number(region)?, instance: number(instance)? })
        };
        numbers().ok_or_else(|| ParseDaxError(text.to_owned()))
    }
}

/// A number as the kernel writes it: `parse` alone would take `+1` and `01`, which name nothing.
fn number(text: &str) -> Option<u32> {
    let number: u32 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_the_kernel_s_name_with_or_without_the_directory() {
        let device = DaxDevice { region: 1, instance: 20 };
        assert_eq!("dax1.20".parse(), Ok(device));
        assert_eq!("/dev/dax1.20".parse(), Ok(device));
        assert_eq!(device.to_string(), "dax1.20");
    }

    /// A name that is read as another device's would hand memory to the wrong one.
    #[test]
    fn what_is_nearly_a_name_is_none() {
        for text in ["", "dax", "dax0", "dax0.", "dax.0", "dax+1.0", "dax01.0", "dax0.0.0", "0.0"] {
            assert!(text.parse::<DaxDevice>().is_err(), "{text}");
        }
        let error = "/mnt/pmem/cold".parse::<DaxDevice>().unwrap_err().to_string();
        assert!(error.contains("--spill dax:FILE"), "{error}");
    }
}
