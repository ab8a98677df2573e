// SPDX-License-Identifier: MIT OR Apache-2.0

//! Fault injection: calls that fail on request of `SIMCUDA_FAIL`.

use crate::api::{Answer, Code};
use crate::config::Fault;
use crate::{config, context};
use std::collections::HashMap;
use std::sync::Mutex;

/// Sticky error codes: every later call in the context returns them.
const STICKY: [i32; 9] = [700, 702, 710, 714, 715, 716, 717, 718, 719];

static USES: Mutex<Option<HashMap<&'static str, u64>>> = Mutex::new(None);

/// Counts a use of `call` and returns the error that `SIMCUDA_FAIL` requests for it. A sticky code
/// also poisons the current context.
pub fn check(call: &'static str) -> Answer {
    let faults = &config::get().faults;
    if faults.is_empty() {
        return Ok(());
    }
    let uses = {
        let mut uses = USES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let uses = uses.get_or_insert_default().entry(call).or_insert(0);
        *uses += 1;
        *uses
    };
    let meant = |fault: &&Fault| fault.call == call || call.strip_suffix("_v2") == Some(fault.call.as_str());
    let due = |fault: &&Fault| uses == fault.nth || fault.onwards && uses > fault.nth;
    let hit = faults.iter().find(|fault| meant(fault) && due(fault));
    let Some(fault) = hit else { return Ok(()) };
    if STICKY.contains(&fault.code)
        && let Ok(context) = context::current()
    {
        context.state.poison(fault.code);
    }
    if fault.code == 0 { Ok(()) } else { Err(Code(fault.code)) }
}
