//! A peer that means harm: it speaks the protocol wrongly, and misuses everything that is shared with it.
//!
//! `hostile reader PATH ATTACK` joins the stream at PATH, `hostile exporter PATH ATTACK` waits there for a reader;
//! `hostile reader` and `hostile exporter` alone list the attacks. `hostile silent PATH` keeps one connection at PATH that says
//! nothing, until it is killed. The last line says in JSON what must become of the
//! attacker, which is for the test to check (tests/hostile). The exit status is 0 if the attack took place, whatever came of it, and
//! 1 if it could not, or if the other side let through what it must not.

mod exporter;
mod reader;
mod scribble;

use serde_json::json;
use std::{env, error::Error, path::Path, process::ExitCode};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn run() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["reader"] => reader::ATTACKS.iter().for_each(|(name, _)| println!("{name}")),
        ["exporter"] => exporter::ATTACKS.iter().for_each(|(name, _)| println!("{name}")),
        ["silent", path] => reader::stay_silent(Path::new(path))?,
        ["scribble", bytes, ms] => scribble::scribble(bytes.parse()?, ms.parse()?)?,
        ["reader", path, name] => {
            let attack = reader::ATTACKS.iter().find(|(known, _)| *known == name);
            let (_, attack) = attack.ok_or_else(|| format!("there is no attack {name}"))?;
            let fate = attack(Path::new(path))?;
            println!("{}", json!({ "event": "done", "fate": format!("{fate:?}") }));
        }
        ["exporter", path, name] => {
            let attack = exporter::ATTACKS.iter().find(|(known, _)| *known == name);
            let (_, attack) = attack.ok_or_else(|| format!("there is no attack {name}"))?;
            exporter::run(Path::new(path), *attack)?;
        }
        _ => return Err("hostile reader|exporter [PATH ATTACK]".into()),
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
