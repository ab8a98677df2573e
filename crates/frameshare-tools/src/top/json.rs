// SPDX-License-Identifier: MIT OR Apache-2.0

//! The table for programs. Ages are in seconds, rates per second, CPU time in cores.

use super::{
    sample::{Reader, State, Stream},
    usage::Cost,
};
use serde_json::{Value, json};

/// Returns all streams of a sample.
pub fn streams(streams: &[Stream]) -> Value {
    json!({ "streams": streams.iter().map(stream).collect::<Vec<_>>() })
}

fn stream(stream: &Stream) -> Value {
    let mut value = json!({ "stream": stream.name, "socket": stream.socket });
    match &stream.state {
        Ok(state) => add_state(&mut value, state),
        Err(error) => value["error"] = error.to_string().into(),
    }
    value
}

fn add_state(value: &mut Value, state: &State) {
    let readers = state.readers.iter().map(reader);
    value["rate"] = state.rate.into();
    value["age"] = state.age().map(|ns| ns as f64 / 1e9).into();
    value["lag"] = state.lag().into();
    value["held"] = state.held().into();
    value["slots"] = state.snapshot.counters.slots.into();
    value["lost"] = state.lost().into();
    value["copies"] = state.copies.into();
    add_cost(value, state.cost);
    value["readers"] = readers.collect();
}

fn add_cost(value: &mut Value, cost: Option<Cost>) {
    value["wakeups"] = cost.map(|cost| cost.wakeups).into();
    value["cpu"] = cost.map(|cost| cost.cpu).into();
}

fn reader(reader: &Reader) -> Value {
    let state = &reader.state;
    let mut value = json!({
        "id": state.id,
        "name": state.name,
        "pid": state.pid,
        "policy": state.policy.to_string(),
        "memory": state.memory.to_string(),
        "rate": reader.rate,
        "age": reader.age.map(|ns| ns as f64 / 1e9),
        "lag": state.lag,
        "held": state.held,
        "credit": state.credit,
        "lost": state.lost,
        "copies": reader.copies(),
    });
    add_cost(&mut value, reader.cost);
    value
}
