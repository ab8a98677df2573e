// SPDX-License-Identifier: MIT OR Apache-2.0

//! Hostile peer: violates the protocol and misuses all shared resources.
//!
//! `hostile reader PATH ATTACK` joins the stream at PATH, `hostile exporter PATH ATTACK` waits
//! there for a reader; `hostile reader` and `hostile exporter` alone list the attacks. `hostile
//! silent PATH` keeps one silent connection to PATH until it is killed. `hostile connect PATH
//! COUNT` makes many connections one after the other, and `hostile fill PATH` keeps as many as it
//! can get. `hostile hoard PATH KEEPER SECONDS` collects the memory of the stream at PATH, and
//! hands it to `hostile keep KEEPER`, which keeps it until it is killed. `hostile fuse FOLDER`
//! serves the file that the attacks named `fuse-*` send, until it is killed. With `stay` at the end
//! the process keeps its descriptors open until it is killed. The last line of output says in JSON
//! what must become of the attacker; the test checks it (tests/hostile). The exit status is 0 if
//! the attack took place, whatever its result, and 1 if it could not take place or if the other
//! side violated a rule that the attack checks.

mod exporter;
mod fuse;
mod reader;
mod scribble;

use serde_json::json;
use std::{env, error::Error, io, path::Path, process::ExitCode, time::Duration};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Whether the kernel refused to send a descriptor (SO_PASSRIGHTS, Linux 6.16), which ends the
/// attack.
fn is_refused(error: &(dyn Error + 'static)) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    let errno = error.downcast_ref::<rustix::io::Errno>();
    kind == Some(io::ErrorKind::PermissionDenied) || errno == Some(&rustix::io::Errno::PERM)
}

fn run() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let stays = arguments.pop_if(|last| *last == "stay").is_some();
    match arguments[..] {
        ["reader"] => reader::ATTACKS.iter().for_each(|(name, _)| println!("{name}")),
        ["exporter"] => exporter::ATTACKS.iter().for_each(|(name, _)| println!("{name}")),
        ["silent", path] => reader::stay_silent(Path::new(path))?,
        ["connect", path, count] => reader::connect(Path::new(path), count.parse()?)?,
        ["fill", path] => reader::fill(Path::new(path))?,
        ["scribble", bytes, ms] => scribble::scribble(bytes.parse()?, ms.parse()?)?,
        ["reader", path, name] => {
            let mut attacks = reader::ATTACKS.iter().chain(&reader::fuse::ATTACKS);
            let attack = attacks.find(|(known, _)| *known == name);
            let (_, attack) = attack.ok_or_else(|| format!("there is no attack {name}"))?;
            let (fate, refused) = match attack(Path::new(path)) {
                Err(error) if is_refused(&*error) => (reader::Fate::Left, true),
                fate => (fate?, false),
            };
            println!("{}", json!({ "event": "done", "fate": format!("{fate:?}"), "refused": refused }));
        }
        ["keep", path] => reader::hoard::keep(Path::new(path))?,
        ["hoard", path, keeper, seconds] => {
            let time = Duration::from_secs(seconds.parse()?);
            reader::hoard::hoard(Path::new(path), Path::new(keeper), time)?;
        }
        ["fuse", folder] => fuse::serve(Path::new(folder))?,
        ["exporter", path, name] if name.starts_with("fuse") => {
            let path = Path::new(path);
            let attack = exporter::fuse::ATTACKS.iter().find(|(known, _)| *known == name);
            let (_, attack) = attack.ok_or_else(|| format!("there is no attack {name}"))?;
            let file = fuse::file(path)?;
            exporter::run(path, exporter::Fate::GivesUp, |listener| attack(file, listener))?;
        }
        ["exporter", path, name] => {
            let mut attacks = exporter::ATTACKS.iter().chain([&exporter::HONEST]);
            let attack = attacks.find(|(known, _)| *known == name);
            let (_, (fate, attack)) = attack.ok_or_else(|| format!("there is no attack {name}"))?;
            exporter::run(Path::new(path), *fate, attack)?;
        }
        _ => return Err("hostile reader|exporter [PATH ATTACK [stay]]".into()),
    }
    if stays {
        loop {
            std::thread::park();
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hostile: {error}");
            ExitCode::FAILURE
        }
    }
}
