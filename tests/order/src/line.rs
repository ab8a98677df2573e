// SPDX-License-Identifier: MIT OR Apache-2.0

//! Lines of a trace. Their meaning is described in `tests/simcuda/src/order.rs`.

/// An item: number of the stream in its process, number of the item in the stream.
pub type Item = (u64, u64);

/// The operation of a line: the CPU's, or an item's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Cpu,
    Item(Item),
}

/// A range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range<'a> {
    pub file: &'a str,
    pub start: u64,
    pub end: u64,
    pub write: bool,
}

/// A line.
#[derive(Debug)]
pub struct Line<'a> {
    pub process: &'a str,
    pub what: What<'a>,
}

#[derive(Debug)]
pub enum What<'a> {
    Begin(&'a str),
    Enqueue(Item, Vec<Item>),
    Run(Item, &'a str, Vec<Range<'a>>),
    Access(Who, &'a str, Vec<Range<'a>>),
    Release(Who, &'a str, Option<u64>),
    Acquire(Who, &'a str, Option<u64>),
    Signal(Who, &'a str, u64),
    Wait(Who, &'a str, u64),
    Synced(Item),
    Enter(Item),
    Leave(Item),
    Dying,
    Ended,
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

fn item(text: &str) -> Option<Item> {
    let (stream, seq) = text.split_once(':')?;
    Some((hex(stream)?, hex(seq)?))
}

fn who(text: &str) -> Option<Who> {
    if text == "cpu" { Some(Who::Cpu) } else { item(text).map(Who::Item) }
}

fn range(text: &str) -> Option<Range<'_>> {
    let (kind, place) = text.split_once('=')?;
    let (file, place) = place.split_once(':')?;
    let (start, len) = place.split_once('+')?;
    let (start, len) = (hex(start)?, hex(len)?);
    Some(Range { file, start, end: start.checked_add(len)?, write: kind == "w" })
}

/// Returns the meaning of a line, or `None` if it has none.
pub fn parse(line: &str) -> Option<Line<'_>> {
    let (process, rest) = line.split_once(' ')?;
    let (verb, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let mut words = rest.split(' ').filter(|word| !word.is_empty());
    let mut next = || words.next();
    let what = match verb {
        "begin" => What::Begin(rest),
        "enqueue" => What::Enqueue(item(next()?)?, words.map(item).collect::<Option<_>>()?),
        "run" => What::Run(item(next()?)?, next()?, words.map(range).collect::<Option<_>>()?),
        "access" => What::Access(who(next()?)?, next()?, words.map(range).collect::<Option<_>>()?),
        "release" => What::Release(who(next()?)?, next()?, words.next().and_then(hex)),
        "acquire" => What::Acquire(who(next()?)?, next()?, words.next().and_then(hex)),
        "signal" => What::Signal(who(next()?)?, next()?, hex(next()?)?),
        "wait" => What::Wait(who(next()?)?, next()?, hex(next()?)?),
        "synced" => What::Synced(item(next()?)?),
        "enter" => What::Enter(item(next()?)?),
        "leave" => What::Leave(item(next()?)?),
        "dying" => What::Dying,
        "ended" => What::Ended,
        _ => return None,
    };
    Some(Line { process, what })
}
