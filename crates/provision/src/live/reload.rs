//! A namespace of persistent memory becomes a DAX device, which the daemon can
//! make memory.
//!
//! What `ndctl create-namespace --mode=devdax` does, for machines without it,
//! by small files of sysfs alone.

use std::io;

use super::kernel::Kernel;

/// One write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The file, below the root.
    pub path: String,
    /// What is written.
    pub text: String,
}

const ND: &str = "sys/bus/nd";

/// The writes that make a namespace a DAX device, in their order, and the name by which the
/// kernel knows it while it is made.
pub fn writes(kernel: &dyn Kernel, namespace: &str) -> io::Result<(String, Vec<Write>)> {
    let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
    let number = namespace
        .strip_prefix("namespace")
        .and_then(|rest| rest.split_once('.'))
        .filter(|(region, _)| !region.is_empty() && region.bytes().all(|b| b.is_ascii_digit()))
        .map(|(region, _)| region)
        .ok_or_else(|| wrong(format!("`{namespace}` is no namespace, such as namespace0.0")))?;
    let here = format!("{ND}/devices/{namespace}");
    let size = kernel.read(&format!("{here}/size")).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => wrong(format!("there is no {namespace}")),
        _ => error,
    })?;
    if size == "0" {
        return Err(wrong(format!("{namespace} has no memory")));
    }
    let region = format!("{ND}/devices/region{number}");
    let seed = kernel.read(&format!("{region}/dax_seed"))?;
    let uuid = kernel.read("proc/sys/kernel/random/uuid")?;
    let seed_path = format!("{region}/{seed}");
    let mut all = Vec::new();
    let mut write = |path: String, text: &str| all.push(Write { path, text: text.to_owned() });
    if let Some(driver) = kernel.link(&format!("{here}/driver")) {
        write(format!("{ND}/drivers/{driver}/unbind"), namespace);
    }
    write(format!("{seed_path}/uuid"), &uuid);
    // Page descriptors of the device itself, while it is one, lie in DRAM. Without a mode the
    // kernel answers ENXIO.
    write(format!("{seed_path}/mode"), "ram");
    write(format!("{seed_path}/align"), "2097152");
    write(format!("{seed_path}/namespace"), namespace);
    write(format!("{ND}/drivers/dax_pmem/bind"), &seed);
    Ok((seed, all))
}

/// Why a namespace must not be taken away; `None` if nobody uses it.
pub fn user(kernel: &dyn Kernel, namespace: &str, disks: &[String]) -> Option<String> {
    let lists = [("proc/mounts", "is mounted"), ("proc/swaps", "is swapped to")];
    for disk in disks {
        let device = format!("/dev/{disk}");
        for (list, what) in lists {
            let text = kernel.read(list).unwrap_or_default();
            let names = text.lines().filter_map(|line| line.split_whitespace().next());
            // Partitions have their disk's name in front.
            if names.into_iter().any(|name| name.starts_with(&device)) {
                return Some(format!("{namespace} ({device}) {what}"));
            }
        }
    }
    None
}

/// Carries out the writes. What was done before one that fails is undone as far as it can be:
/// the namespace is given back to its driver.
pub fn carry_out(kernel: &dyn Kernel, namespace: &str, writes: &[Write]) -> io::Result<()> {
    let told = |write: &Write, error: io::Error| {
        io::Error::new(error.kind(), format!("/{}: {error}", write.path))
    };
    for (at, write) in writes.iter().enumerate() {
        if let Err(error) = kernel.write(&write.path, &write.text) {
            if at > 0
                && let Some(driver) = writes[0].path.strip_suffix("/unbind")
            {
                // It is told what failed; that this failed, too, is told by its absence.
                let _ = kernel.write(&format!("{driver}/bind"), namespace);
            }
            return Err(told(write, error));
        }
    }
    Ok(())
}
