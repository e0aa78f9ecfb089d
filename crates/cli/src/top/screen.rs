//! The terminal: keys, sizes, and leaving it as it was.

use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::MIN_INTERVAL;
use super::draw::{self, Map};
use super::history::History;
use crate::failure::Failure;

/// The longest interval that the keys give.
const MAX_INTERVAL: Duration = Duration::from_mins(1);

/// What the person at the keyboard has chosen.
struct View {
    interval: Duration,
    map: Map,
    /// Which of the runs.
    run: usize,
    held: bool,
}

/// Draws until q is pressed.
pub(super) fn show(
    choice: Option<&str>,
    interval: Duration,
    count: Option<u64>,
) -> Result<(), Failure> {
    let failed = |e| Failure::failed(format!("terminal: {e}"));
    // Also makes a panic leave the terminal first.
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let outcome = watch(&mut terminal, choice, interval, count);
    ratatui::restore();
    outcome.map_err(failed)
}

fn watch(
    terminal: &mut DefaultTerminal,
    choice: Option<&str>,
    interval: Duration,
    count: Option<u64>,
) -> std::io::Result<()> {
    let mut history = History::new();
    let mut view = View { interval, map: Map::Residency, run: 0, held: false };
    let mut looks = 0;
    loop {
        if !view.held {
            history.look(choice);
            looks += 1;
        }
        let next = Instant::now() + view.interval;
        loop {
            let runs = history.runs();
            view.run = view.run.min(runs.len().saturating_sub(1));
            terminal.draw(|frame| {
                draw::screen(frame, runs, view.run, view.map, view.interval, view.held);
            })?;
            let rest = next.saturating_duration_since(Instant::now());
            if !event::poll(rest)? {
                break;
            }
            // Anything else (a resize) only asks for another drawing.
            if let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
                && !view.obey(key, runs.len())
            {
                return Ok(());
            }
        }
        if count.is_some_and(|count| looks >= count) {
            return Ok(());
        }
    }
}

impl View {
    /// Does what a key asks for; false if that is to stop.
    fn obey(&mut self, key: KeyEvent, runs: usize) -> bool {
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Tab | KeyCode::Right => self.run = (self.run + 1) % runs.max(1),
            KeyCode::BackTab | KeyCode::Left => {
                self.run = (self.run + runs.max(1) - 1) % runs.max(1);
            }
            KeyCode::Char('h') => self.map = self.map.other(),
            KeyCode::Char(' ') => self.held = !self.held,
            KeyCode::Char('+') => {
                self.interval = (self.interval / 2).max(Duration::from_nanos(MIN_INTERVAL.get()));
            }
            KeyCode::Char('-') => self.interval = (self.interval * 2).min(MAX_INTERVAL),
            _ => {}
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_do_what_the_help_says() {
        let second = Duration::from_secs(1);
        let mut view = View { interval: second, map: Map::Residency, run: 0, held: false };
        let mut press = |code| {
            let goes_on = view.obey(KeyEvent::new(code, KeyModifiers::NONE), 3);
            (goes_on, view.run, view.map, view.held, view.interval)
        };

        assert_eq!(press(KeyCode::BackTab).1, 2);
        assert_eq!(press(KeyCode::Tab).1, 0);
        assert_eq!(press(KeyCode::Char('h')).2, Map::Faults);
        assert!(press(KeyCode::Char(' ')).3);
        assert_eq!(press(KeyCode::Char('+')).4, second / 2);
        for _ in 0..20 {
            press(KeyCode::Char('+'));
        }
        assert_eq!(press(KeyCode::Char('+')).4, Duration::from_nanos(MIN_INTERVAL.get()));
        assert!(!press(KeyCode::Char('q')).0);
    }
}
