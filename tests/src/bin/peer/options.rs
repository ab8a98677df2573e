// SPDX-License-Identifier: MIT OR Apache-2.0

//! Command-line options.

use crate::Result;
use frameshare::{Endpoint, StreamName};
use std::{collections::HashMap, str::FromStr};

pub const USAGE: &str = "\
peer read   --stream NAME | --socket PATH   stream to read
            --policy latest|lossless        (latest)
            --spin PERCENT                  (0)
            --max-held N                    (4)
            --max-queued N                  untaken frames of latest (64)
            --frames N                      stop after N frames
            --sleep-ms N                    before each frame's release
            --hold N                        keep the newest N frames, and compare them again at the end
            --hoard N                       hold N frames, then sleep until killed
            --timeout-ms N                  for the connection (60000)
            --reconnect yes                 continue with a new exporter
            --exporter-uid N                accept this user's exporter only
            --sum yes                       a checksum of each frame's bytes
            --verify yes                    compare with what `peer export` writes
            --latency yes                   add latencies to the summary
            --report-layout yes             say that frames are copied for their layout
            --request-key-units yes         request a key unit after each frame
            --fork yes                      fork a child that keeps all descriptors open, once connected
            --quiet yes                     print the summary only
peer observe --stream NAME | --socket PATH  stream to observe
            --disconnect N                  disconnect this reader
            --timeout-ms N                  for each answer (5000)
peer list                                   streams that are shared
peer export --stream NAME | --socket PATH   stream to export
            --frames N                      number of frames (100)
            --until PATH                    until this file exists
            --size BYTES                    of each frame (1000000)
            --event-bytes N                 send an event of N bytes, its number first, before each frame
            --events N                      as many of them before each frame (1)
            --metadata-bytes N              metadata beside each frame (0)
            --gop N                         every Nth frame is a key unit, the others are deltas
            --renew-every N                 other caps and another size after N frames
            --caps TEXT                     caps of the frames
            --fps N                         frames a second; 0: unlimited (0)
            --readers N                     wait for N readers first (1)
            --max-slots N, --max-held-limit N, --lossless-readers none|own-uid|all, --reader-timeout-ms N
            --slow-readers wait|queue-then-wait|queue-then-disconnect, --queue-for-other-users yes
            --max-queued-time-ms N          of frames that wait for a reader
            --keeps-last yes                keep the last frame for readers that join later
            --max-retired-bytes N, --trusted-uids N,N
            --allowed-uids N,N, --allowed-gids N,N, --socket-mode OCTAL
            --allow-udmabuf yes             admit other users though they could write
            --fork yes                      fork a child that keeps all descriptors open
            --end eos|stop|hang             action after the last frame (eos)
            --drain-ms N                    wait for the readers after it (10000)
peer share  --folder PATH --until PATH      many streams to export in one process, until this file exists
            --streams N                     number of streams (64)
            --readers N                     publish a second frame when each has N readers
peer fork   --folder PATH --until PATH      one stream of two, and the other one in a forked child
peer gather --folder PATH --streams N       these streams to read in one thread
            --copies N                      readers of each stream (1)
            --max-held N                    (1; 0: the default)";

/// Options of a command line: `--name value`, in any order.
pub struct Options(HashMap<String, String>);

impl Options {
    pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = HashMap::new();
        let mut arguments = arguments;
        while let Some(name) = arguments.next() {
            let name =
                name.strip_prefix("--").ok_or_else(|| format!("{name:?} is no option\n{USAGE}"))?.to_owned();
            let value = arguments.next().ok_or_else(|| format!("--{name} has no value"))?;
            if !USAGE.contains(&format!("--{name} ")) {
                return Err(format!("there is no --{name}\n{USAGE}").into());
            }
            options.insert(name, value);
        }
        Ok(Self(options))
    }

    pub fn get<T: FromStr>(&self, name: &str) -> Result<Option<T>> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        Ok(Some(value.parse().map_err(|_| format!("--{name} {value} is invalid"))?))
    }

    pub fn or<T: FromStr>(&self, name: &str, default: T) -> Result<T> {
        Ok(self.get(name)?.unwrap_or(default))
    }

    /// A list of numbers separated by commas; empty without the option.
    pub fn list(&self, name: &str) -> Result<Vec<u32>> {
        let text = self.or(name, String::new())?;
        let numbers = text.split(',').filter(|number| !number.is_empty());
        Ok(numbers.map(str::parse).collect::<std::result::Result<_, _>>()?)
    }

    pub fn is_set(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| value == "yes")
    }

    pub fn endpoint(&self) -> Result<Endpoint> {
        match (self.get::<String>("socket")?, self.get::<StreamName>("stream")?) {
            (Some(path), None) => Ok(Endpoint::at(path)?),
            (None, Some(name)) => Ok(match self.get("exporter-uid")? {
                Some(user) => Endpoint::of_user(&name, user)?,
                None => Endpoint::of_stream(&name)?,
            }),
            _ => Err(format!("one of --stream and --socket is needed\n{USAGE}").into()),
        }
    }
}
