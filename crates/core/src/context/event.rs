//! What happens to contexts, as data that can be recorded and replayed.

use serde::{Deserialize, Serialize};

use super::{ContextIdentity, ObjectId, ObjectKind};
use crate::page::PageRef;
use crate::region::ContextId;
use crate::units::Nanos;

/// A logical processor.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Cpu(pub u16);

/// Something happened to a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextEvent {
    /// When.
    pub at: Nanos,
    /// On which processor.
    pub cpu: Cpu,
    /// To which context.
    pub context: ContextId,
    /// What.
    pub change: ContextChange,
}

/// What can happen to a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ContextChange {
    /// The kernel made its inode. Nobody has it open.
    Created {
        /// Which file or socket it is.
        identity: ContextIdentity,
    },
    /// A program opened it, once more.
    Opened,
    /// A program read or wrote it.
    Accessed,
    /// Its file has another name. It is the same context.
    Renamed,
    /// A program closed it, once. The last close makes it inactive.
    Closed,
    /// A kernel object became its member.
    Added {
        /// The object.
        object: ObjectId,
        /// Its kind.
        kind: ObjectKind,
        /// The page that it lies in. Slab objects share pages.
        page: PageRef,
    },
    /// A member was freed.
    Removed {
        /// The object.
        object: ObjectId,
        /// Its kind.
        kind: ObjectKind,
    },
    /// The kernel dropped its inode to make room. The file is still there.
    Evicted,
    /// The file was deleted, or the socket is gone.
    Deleted,
    /// A reader that goes through the file comes to this member soon: the kernel reads ahead, and
    /// what it would read is cached already.
    Ahead {
        /// The object.
        object: ObjectId,
    },
}
