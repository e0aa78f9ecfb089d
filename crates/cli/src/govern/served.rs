//! The figures as they are served meanwhile.

use std::sync::{Arc, Mutex, PoisonError};

use terrace_live::sys;
use terrace_report::openmetrics::governed;

use super::Args;
use super::session::Session;
use crate::failure::Failure;
use crate::metrics::{self, SocketFile};

/// OpenMetrics text of all groups, for whoever asks.
pub(super) struct Served {
    text: Arc<Mutex<Option<String>>>,
    /// The socket's file, which goes with this.
    _socket: Option<SocketFile>,
}

impl Served {
    /// Begins to serve, if that is asked for.
    pub(super) fn open(args: &Args) -> Result<Option<Self>, Failure> {
        let Some(listen) = &args.metrics else { return Ok(None) };
        let text = Arc::<Mutex<Option<String>>>::default();
        let figures = Arc::clone(&text);
        let read = move || figures.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let socket = metrics::serve_text(listen, args.quiet, read)?;
        Ok(Some(Self { text, _socket: socket }))
    }

    /// From now on serves the figures of these groups as they are now.
    pub(super) fn tell(&self, sessions: &mut [&mut Session]) -> Result<(), Failure> {
        let cpu = sys::thread_cpu();
        let reports: Vec<_> = sessions.iter().map(|session| session.report(None)).collect();
        let text = governed::encode(&reports).map_err(Failure::failed)?;
        *self.text.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
        let took = sys::thread_cpu().saturating_sub(cpu) / sessions.len().max(1) as u64;
        for session in sessions.iter_mut() {
            session.charge(took);
        }
        Ok(())
    }
}
