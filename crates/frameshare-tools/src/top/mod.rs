// SPDX-License-Identifier: MIT OR Apache-2.0

//! `frameshare top`: all streams and their readers, again and again.

mod json;
mod rows;
mod sample;
mod screen;
mod usage;

use crate::{
    cli::TopOptions,
    error::Error,
    output::{Page, print_json},
    signals,
};
use frameshare::Interrupt;
use rows::{Row, TITLES};
use sample::Sampler;
use std::{
    io::{self, IsTerminal},
    time::Duration,
};

/// Time over which the first rates are measured.
const FIRST: Duration = Duration::from_millis(500);

/// Shows the table on the terminal, or prints it.
pub fn top(options: &TopOptions, json: bool) -> Result<(), Error> {
    let interrupt = signals::interrupt()?;
    let mut sampler = Sampler::default();
    // The first rates need a sample before.
    sampler.sample()?;
    if options.batch || json || !io::stdout().is_terminal() {
        print(options, json, sampler, &interrupt)
    } else {
        screen::show(options, sampler, &interrupt)
    }
}

fn print(options: &TopOptions, json: bool, mut sampler: Sampler, interrupt: &Interrupt) -> Result<(), Error> {
    let mut delay = options.delay.min(FIRST);
    for number in 0..options.count.unwrap_or(u64::MAX) {
        if signals::wait(interrupt, delay) {
            break;
        }
        delay = options.delay;
        let mut streams = sampler.sample()?;
        sample::sort(&mut streams, options.sort);
        if json {
            print_json(&json::streams(&streams))?;
            continue;
        }
        let mut page = Page::new();
        if number > 0 {
            page.line("");
        }
        let rows: Vec<_> = rows::of(&streams).into_iter().map(Row::into_cells).collect();
        page.table(TITLES, &rows);
        page.print()?;
    }
    Ok(())
}
