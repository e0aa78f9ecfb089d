//! A context from its creation to its end.

use core::ops::Index;

use serde::{Deserialize, Serialize};

use super::{ContextChange, ContextEvent, ContextIdentity, ObjectKind};
use crate::region::ContextId;
use crate::units::{Bytes, Nanos};

/// What a context is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Somebody has it open.
    Active,
    /// Nobody has it open.
    Inactive,
    /// The kernel dropped it; the file is still there.
    Evicted,
    /// The file was deleted, or the socket is gone.
    Deleted,
}

/// Members of a context, counted by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Members([u32; ObjectKind::COUNT]);

impl Members {
    /// All members.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|&n| u64::from(n)).sum()
    }

    /// What all members take.
    pub fn bytes(&self) -> Bytes {
        ObjectKind::ALL.into_iter().map(|kind| kind.size() * u64::from(self[kind])).sum()
    }
}

impl Index<ObjectKind> for Members {
    type Output = u32;
    fn index(&self, kind: ObjectKind) -> &u32 {
        &self.0[kind.index()]
    }
}

/// A file or a socket as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Context {
    /// Its number.
    pub id: ContextId,
    /// Which file or socket it is.
    pub identity: ContextIdentity,
    /// What it is doing.
    pub state: State,
    /// How often it is open now.
    pub opens: u32,
    /// When the kernel made it.
    pub created: Nanos,
    /// When it was last opened, read or written.
    pub active: Nanos,
    /// When it was last closed for good.
    pub last_close: Option<Nanos>,
    /// When it was evicted or deleted.
    pub ended: Option<Nanos>,
    /// Its members by kind.
    pub members: Members,
}

/// Why an event cannot have happened to a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContextError {
    /// No event says that the context was created.
    #[error("context {} is unknown", .0.0)]
    Unknown(ContextId),
    /// The context lives already.
    #[error("context {} is created twice", .0.0)]
    CreatedTwice(ContextId),
    /// The context was evicted or deleted before.
    #[error("context {} has ended", .0.0)]
    Ended(ContextId),
    /// It is closed more often than it was opened.
    #[error("context {} is closed more often than it was opened", .0.0)]
    NotOpen(ContextId),
    /// It ended while somebody had it open.
    #[error("context {} ends while it is open", .0.0)]
    EndsOpen(ContextId),
    /// It ended with members that were not freed.
    #[error("context {} ends with {} of its objects not freed", .0.0, .1)]
    Leaks(ContextId, u64),
    /// A member was freed of a kind that the context has no member of.
    #[error("context {} has no {} to free", .0.0, .1.name())]
    NoMember(ContextId, ObjectKind),
    /// The event is older than what the context has seen.
    #[error("an event of context {} is older than the one before it", .0.0)]
    BackInTime(ContextId),
}

impl Context {
    /// The context that a [`ContextChange::Created`] tells of; nothing for other events.
    pub fn from_event(event: &ContextEvent) -> Option<Self> {
        let ContextChange::Created { identity } = event.change else { return None };
        Some(Self {
            id: event.context,
            identity,
            state: State::Inactive,
            opens: 0,
            created: event.at,
            active: event.at,
            last_close: None,
            ended: None,
            members: Members::default(),
        })
    }

    /// Enters what happened. After an error the context is what it was before.
    pub fn apply(&mut self, event: &ContextEvent) -> Result<(), ContextError> {
        let id = self.id;
        if event.context != id {
            return Err(ContextError::Unknown(event.context));
        }
        if self.ended.is_some() {
            return Err(ContextError::Ended(id));
        }
        let seen = self.active.max(self.last_close.unwrap_or_default());
        if event.at < seen {
            return Err(ContextError::BackInTime(id));
        }
        match event.change {
            ContextChange::Created { .. } => return Err(ContextError::CreatedTwice(id)),
            ContextChange::Opened => {
                self.opens += 1;
                self.state = State::Active;
                self.active = event.at;
            }
            ContextChange::Accessed => self.active = event.at,
            ContextChange::Renamed | ContextChange::Ahead { .. } => {}
            ContextChange::Closed => {
                self.opens = self.opens.checked_sub(1).ok_or(ContextError::NotOpen(id))?;
                if self.opens == 0 {
                    self.state = State::Inactive;
                    self.last_close = Some(event.at);
                }
            }
            ContextChange::Added { kind, .. } => self.members.0[kind.index()] += 1,
            ContextChange::Removed { kind, .. } => {
                let count = &mut self.members.0[kind.index()];
                *count = count.checked_sub(1).ok_or(ContextError::NoMember(id, kind))?;
            }
            ContextChange::Evicted | ContextChange::Deleted => {
                if self.opens > 0 {
                    return Err(ContextError::EndsOpen(id));
                }
                if self.members.total() > 0 {
                    return Err(ContextError::Leaks(id, self.members.total()));
                }
                self.ended = Some(event.at);
                self.state = if event.change == ContextChange::Deleted {
                    State::Deleted
                } else {
                    State::Evicted
                };
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cpu, ObjectId};
    use super::*;
    use crate::page::{PageNo, PageRef};
    use crate::region::RegionId;

    const ID: ContextId = ContextId(7);

    fn event(at: u64, change: ContextChange) -> ContextEvent {
        ContextEvent { at: Nanos(at), cpu: Cpu(0), context: ID, change }
    }

    fn created() -> Context {
        let identity = ContextIdentity::File { device: 1, inode: 2, generation: 3 };
        Context::from_event(&event(1, ContextChange::Created { identity })).expect("created")
    }

    fn added(object: u64, kind: ObjectKind) -> ContextChange {
        let page = PageRef { region: RegionId(0), page: PageNo(0) };
        ContextChange::Added { object: ObjectId(object), kind, page }
    }

    /// A file that two programs have open is in use until both have closed it.
    #[test]
    fn only_the_last_close_makes_a_context_inactive() {
        let mut file = created();
        for (at, change) in [(2, ContextChange::Opened), (3, ContextChange::Opened)] {
            file.apply(&event(at, change)).expect("legal");
        }
        file.apply(&event(4, ContextChange::Closed)).expect("legal");
        assert_eq!((file.state, file.last_close), (State::Active, None));
        file.apply(&event(5, ContextChange::Closed)).expect("legal");
        assert_eq!((file.state, file.last_close), (State::Inactive, Some(Nanos(5))));
        assert_eq!(file.apply(&event(6, ContextChange::Closed)), Err(ContextError::NotOpen(ID)));
    }

    #[test]
    fn a_rename_leaves_identity_state_and_members_alone() {
        let mut file = created();
        let before = file;
        file.apply(&event(9, ContextChange::Renamed)).expect("legal");
        assert_eq!(file, before);
    }

    #[test]
    fn a_context_cannot_end_before_its_members_are_freed() {
        let mut file = created();
        file.apply(&event(2, added(1, ObjectKind::Dentry))).expect("legal");
        let end = event(3, ContextChange::Deleted);
        assert_eq!(file.apply(&end), Err(ContextError::Leaks(ID, 1)));
        let kind = ObjectKind::Dentry;
        let free = ContextChange::Removed { object: ObjectId(1), kind };
        file.apply(&event(3, free)).expect("legal");
        assert_eq!(file.apply(&event(3, free)), Err(ContextError::NoMember(ID, kind)));
        file.apply(&end).expect("legal");
        assert_eq!(file.state, State::Deleted);
        let late = event(4, ContextChange::Opened);
        assert_eq!(file.apply(&late), Err(ContextError::Ended(ID)));
    }

    #[test]
    fn an_event_out_of_order_is_refused() {
        let mut file = created();
        file.apply(&event(5, ContextChange::Opened)).expect("legal");
        let early = event(4, ContextChange::Accessed);
        assert_eq!(file.apply(&early), Err(ContextError::BackInTime(ID)));
    }

    #[test]
    fn members_take_what_their_kinds_take() {
        let mut file = created();
        for (number, kind) in ObjectKind::ALL.into_iter().enumerate() {
            file.apply(&event(2, added(number as u64, kind))).expect("legal");
        }
        let sizes: Bytes = ObjectKind::ALL.into_iter().map(ObjectKind::size).sum();
        assert_eq!((file.members.total(), file.members.bytes()), (11, sizes));
    }
}
