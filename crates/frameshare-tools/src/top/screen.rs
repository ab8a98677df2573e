// SPDX-License-Identifier: MIT OR Apache-2.0

//! The table on a terminal.

use super::{
    FIRST,
    rows::{self, COLUMNS, TITLES},
    sample::{Sampler, Stream, sort},
};
use crate::{
    cli::{SortKey, TopOptions},
    error::Error,
    output::{escape, is_colored},
};
use frameshare::Interrupt;
use ratatui::{
    DefaultTerminal, Frame,
    crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
    layout::{Alignment, Constraint, Layout},
    style::{Modifier, Style},
    text::Text,
    widgets::{Cell, Paragraph, Row, Table},
};
use std::{sync::mpsc, thread, time::Duration};

/// Maximum time until a key, a new size of the terminal or a signal is noticed.
const TURN: Duration = Duration::from_millis(50);

/// Least length of names, and lengths of the columns behind them.
const NAME: u16 = 20;
const LENGTHS: [u16; COLUMNS - 1] = [6, 7, 5, 6, 6, 6, 6, 5];

/// State of the screen.
struct Screen {
    streams: Vec<Stream>,
    sort: SortKey,
    /// First row that is shown.
    top: usize,
    /// Style of headings and of streams.
    bold: Style,
}

/// Result of a sample, or its error.
type Sample = Result<Vec<Stream>, Error>;

/// Shows the table until a key, a signal or the number of tables ends it. Samples are taken on a
/// thread of their own, so that an exporter that does not answer delays no key.
pub fn show(options: &TopOptions, mut sampler: Sampler, interrupt: &Interrupt) -> Result<(), Error> {
    let (sender, samples) = mpsc::sync_channel(0);
    let (mut delay, period) = (options.delay.min(FIRST), options.delay);
    thread::spawn(move || {
        loop {
            thread::sleep(delay);
            delay = period;
            if sender.send(sampler.sample()).is_err() {
                break;
            }
        }
    });
    let bold = if is_colored() { Style::new().add_modifier(Modifier::BOLD) } else { Style::new() };
    let mut screen = Screen { streams: Vec::new(), sort: options.sort, top: 0, bold };
    let mut terminal = ratatui::try_init().map_err(Error::Terminal)?;
    let result = run(&mut terminal, &mut screen, options.count, interrupt, &samples);
    ratatui::try_restore().map_err(Error::Terminal)?;
    result
}

fn run(
    terminal: &mut DefaultTerminal,
    screen: &mut Screen,
    count: Option<u64>,
    interrupt: &Interrupt,
    samples: &mpsc::Receiver<Sample>,
) -> Result<(), Error> {
    let mut left = count.unwrap_or(u64::MAX);
    let mut is_changed = true;
    while left > 0 && !interrupt.is_set() {
        if is_changed {
            terminal.draw(|frame| screen.draw(frame)).map_err(Error::Terminal)?;
        }
        is_changed = event::poll(TURN).map_err(Error::Terminal)?;
        if is_changed
            && let Event::Key(key) = event::read().map_err(Error::Terminal)?
            && key.kind != KeyEventKind::Release
            && screen.press(key) == Next::Quit
        {
            break;
        }
        if let Ok(sample) = samples.try_recv() {
            screen.streams = sample?;
            sort(&mut screen.streams, screen.sort);
            left -= 1;
            is_changed = true;
        }
    }
    Ok(())
}

#[derive(PartialEq, Eq)]
enum Next {
    Draw,
    Quit,
}

impl Screen {
    fn press(&mut self, key: KeyEvent) -> Next {
        let column = match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Next::Quit,
            KeyCode::Char('q') | KeyCode::Esc => return Next::Quit,
            KeyCode::Char('n') => SortKey::Name,
            KeyCode::Char('r') => SortKey::Rate,
            KeyCode::Char('a') => SortKey::Age,
            KeyCode::Char('g') => SortKey::Lag,
            KeyCode::Char('h') => SortKey::Held,
            KeyCode::Char('l') => SortKey::Lost,
            KeyCode::Char('c') => SortKey::Copies,
            KeyCode::Char('w') => SortKey::Wakeups,
            KeyCode::Char('p') => SortKey::Cpu,
            code => {
                self.top = match code {
                    KeyCode::Down => self.top.saturating_add(1),
                    KeyCode::Up => self.top.saturating_sub(1),
                    KeyCode::PageDown => self.top.saturating_add(10),
                    KeyCode::PageUp => self.top.saturating_sub(10),
                    KeyCode::Home => 0,
                    _ => self.top,
                };
                return Next::Draw;
            }
        };
        self.sort = column;
        sort(&mut self.streams, self.sort);
        Next::Draw
    }

    fn draw(&mut self, frame: &mut Frame) {
        let [head, body] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(frame.area());
        frame.render_widget(Paragraph::new(self.summary()), head);
        let rows = rows::of(&self.streams);
        // Below the titles at least one row stays visible.
        let visible = usize::from(body.height.saturating_sub(1));
        self.top = self.top.min(rows.len().saturating_sub(visible.max(1)));
        let rows = rows.into_iter().skip(self.top).map(|row| {
            let style = if row.is_stream { self.bold } else { Style::new() };
            table_row(row.cells.each_ref().map(String::as_str)).style(style)
        });
        // Narrow terminals get the first columns, from a name of some length on.
        let mut left = body.width.saturating_sub(NAME);
        let fits = |length: &u16| {
            let rest = left.checked_sub(length + 1);
            left = rest.unwrap_or(left);
            rest.is_some()
        };
        let lengths: Vec<u16> = LENGTHS.into_iter().take_while(fits).collect();
        let widths = [Constraint::Min(NAME.min(body.width))].into_iter();
        let widths = widths.chain(lengths.into_iter().map(Constraint::Length));
        let titles = table_row(TITLES).style(self.bold);
        frame.render_widget(Table::new(rows, widths).header(titles), body);
    }

    fn summary(&self) -> String {
        let states = || self.streams.iter().filter_map(|stream| stream.state.as_ref().ok());
        let readers: usize = states().map(|state| state.readers.len()).sum();
        let rate: f64 = states().filter_map(|state| state.rate).sum();
        let sort = format!("{:?}", self.sort).to_lowercase();
        format!(
            "{} streams, {readers} readers, {rate:.0} frames/s; by {sort}; nraghlcwp sort, q quits",
            self.streams.len()
        )
    }
}

/// Aligns the name left and numbers right.
fn table_row(cells: [&str; COLUMNS]) -> Row<'static> {
    let cell = |(index, text): (usize, &str)| {
        let alignment = if index == 0 { Alignment::Left } else { Alignment::Right };
        Cell::new(Text::from(escape(text)).alignment(alignment))
    };
    Row::new(cells.into_iter().enumerate().map(cell))
}
