//! Commands, and who may watch them.

use serde::Serialize;

/// What a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CommandKind {
    /// Opens a row.
    Activate,
    /// Closes a bank's row.
    Precharge,
    /// Closes all rows of a rank.
    PrechargeAll,
    /// Moves a burst out of an open row.
    Read,
    /// Moves a burst into an open row.
    Write,
    /// A read that closes the row.
    ReadAuto,
    /// A write that closes the row.
    WriteAuto,
    /// Refreshes a rank.
    Refresh,
    /// Starts a read of non-volatile media.
    NvmRead,
    /// Fetches what a read of non-volatile media brought.
    NvmSend,
    /// Writes to a non-volatile module's buffer.
    NvmWrite,
}

/// One command on a channel's command bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Command {
    /// The last cycle in which it occupies the command bus: it takes effect then.
    pub at: u64,
    /// What it does.
    pub kind: CommandKind,
    /// The rank. Non-volatile modules are the rank after the last of DRAM.
    pub rank: u32,
    /// The bank group, counted within the rank.
    pub group: u32,
    /// The bank (or partition), counted within the rank.
    pub bank: u32,
    /// The row (or granule).
    pub row: u64,
    /// The request that it serves; `u64::MAX` for precharges and refreshes.
    pub request: u64,
}

/// Watches a channel's commands. The `()` watcher costs nothing.
pub trait Observer {
    /// A command was sent. Commands come in the order of their time.
    fn command(&mut self, command: Command);
}

impl Observer for () {
    #[inline]
    fn command(&mut self, _: Command) {}
}

/// Keeps all commands.
impl Observer for Vec<Command> {
    fn command(&mut self, command: Command) {
        self.push(command);
    }
}
