// SPDX-License-Identifier: MIT OR Apache-2.0

//! Placement of cameras, and the processes that a change restarts.

use super::*;
use crate::config::Passwords;
use std::{collections::BTreeMap, path::Path};

/// Forty cameras, of which each table has these keys.
fn site(keys: &str) -> String {
    (0..40).map(|n| camera(n, keys)).collect()
}

fn camera(number: usize, keys: &str) -> String {
    format!("[cameras.c{number:02}]\nmain = 'rtsp://host/{number}'\nmodel = true\n{keys}\n")
}

fn config(text: &str) -> Config {
    Config::parse(text, Path::new("/none"), Passwords::Read).expect("a valid configuration")
}

fn plan(text: &str, running: &[Planned]) -> Vec<Planned> {
    processes(&config(text), running)
}

/// Cameras of each process of these roles, by its name.
fn placement(plan: &[Planned], roles: &[Role]) -> BTreeMap<String, Vec<String>> {
    let of_roles = plan.iter().filter(|process| roles.contains(&process.role));
    of_roles.map(|process| (process.name.clone(), process.names())).collect()
}

/// Names of the new processes that do not continue one of the old.
fn restarted<'a>(old: &[Planned], new: &'a [Planned]) -> Vec<&'a str> {
    let is_new = |process: &&Planned| !old.iter().any(|old| process.continues(old));
    new.iter().filter(is_new).map(|process| process.name.as_str()).collect()
}

const GROUPED: [Role; 3] = [Role::Record, Role::Motion, Role::Model];

#[test]
fn cameras_fill_processes_in_order_of_the_file() {
    let plan = plan(&site(""), &[]);
    let groups = placement(&plan, &GROUPED);
    assert_eq!(groups.len(), 30);
    assert_eq!(groups["record-1"], ["c00", "c01", "c02", "c03"]);
    assert_eq!(groups["motion-10"], ["c36", "c37", "c38", "c39"]);
    let single = placement(&plan, &[Role::Capture, Role::Decode]);
    assert_eq!((single.len(), &single["decode-c07"]), (80, &vec!["c07".to_owned()]));
    assert_eq!(placement(&plan, &[Role::Wall])["wall"].len(), 40);
}

#[test]
fn removed_camera_moves_no_other_camera() {
    let text = site("");
    let old = plan(&text, &[]);
    let new = plan(&text.replace(&camera(0, ""), ""), &old);
    let mut expected = placement(&old, &GROUPED);
    for role in ["record-1", "motion-1", "model-1"] {
        expected.get_mut(role).expect("a process").remove(0);
    }
    assert_eq!(placement(&new, &GROUPED), expected);
    assert_eq!(restarted(&old, &new), ["model-1", "wall"]);
    assert_eq!(restarted(&new, &old), ["capture-c00", "decode-c00", "model-1", "wall"]);
}

#[test]
fn new_camera_takes_the_first_process_with_room() {
    let text = site("");
    let old = plan(&text, &[]);
    let less = plan(&text.replace(&camera(5, ""), ""), &old);
    let more = plan(&(camera(70, "") + &text.replace(&camera(5, ""), "") + &camera(71, "")), &less);
    let groups = placement(&more, &GROUPED);
    assert_eq!(groups["record-2"], ["c04", "c06", "c07", "c70"]);
    assert_eq!(groups["record-11"], ["c71"]);
    assert_eq!(groups["record-1"], placement(&old, &GROUPED)["record-1"]);
    let names: Vec<_> = placement(&more, &[Role::Wall])["wall"].clone();
    assert_eq!((names[0].as_str(), names[40].as_str()), ("c70", "c71"), "the page has the order of the file");
}

#[test]
fn removed_process_leaves_its_name_to_new_cameras() {
    let text = site("");
    let old = plan(&text, &[]);
    let without = (0..4).fold(text.clone(), |text, n| text.replace(&camera(n, ""), ""));
    let less = plan(&without, &old);
    assert!(!placement(&less, &GROUPED).contains_key("record-1"));
    let more = plan(&(without + &camera(70, "")), &less);
    assert_eq!(placement(&more, &GROUPED)["record-1"], ["c70"]);
}

#[test]
fn process_restarts_only_for_settings_of_its_role() {
    let keys = "sub = 'rtsp://host/sub'\nuser = 'a'";
    let text = site(keys);
    let old = plan(&text, &[]);
    let of_camera = |to: &str| {
        let new = plan(&text.replace(&camera(20, keys), &camera(20, to)), &old);
        assert_eq!(placement(&new, &GROUPED), placement(&old, &GROUPED));
        restarted(&old, &new).join(" ")
    };
    let zone = "zones = [{ points = [[0, 0], [1, 0], [1, 1]] }]";
    assert_eq!(of_camera(&format!("{keys}\n{zone}")), "");
    assert_eq!(of_camera(&keys.replace("'a'", "'b'")), "");
    assert_eq!(of_camera(&format!("{keys}\nrecord = 'latest'\nmotion = 'lossless'")), "");
    assert_eq!(of_camera(&format!("{keys}\ndecode = 'main'")), "wall");

    let of_site = |more: &str| restarted(&old, &plan(&(text.clone() + more), &old)).join(" ");
    let all = |role: &str| (1..11).map(|n| format!("{role}-{n}")).collect::<Vec<_>>().join(" ");
    assert_eq!(of_site("[recording]\nsegment = '5s'"), all("record"));
    assert_eq!(of_site("[model]\ndevice = '1'"), all("model"));
    assert_eq!(of_site("[wall]\nlisten = '127.0.0.1:9'"), "wall");
    assert_eq!(of_site("[groups]\nmotion = 2").split(' ').count(), 20);
    assert_eq!(of_site("[access]\nusers = [7]").split(' ').count(), 80);
}

#[test]
fn role_restarts_cameras_only_for_what_it_uses() {
    let keys = "sub = 'rtsp://host/sub'\nuser = 'a'";
    let camera_of = |keys: &str| config(&camera(0, keys)).cameras.remove(0);
    let old = camera_of(keys);
    let ended = |more: &str| {
        let new = camera_of(&format!("{keys}\n{more}"));
        let roles = [Role::Capture, Role::Decode, Role::Record, Role::Motion, Role::Model, Role::Wall];
        roles.into_iter().filter(|role| !role.goes_on(&old, &new)).collect::<Vec<_>>()
    };
    assert_eq!(ended("zones = [{ points = [[0, 0], [1, 0], [1, 1]] }]"), []);
    assert_eq!(ended("password-env = 'PATH'"), [Role::Capture]);
    assert_eq!(ended("decode = 'main'"), [Role::Decode, Role::Wall]);
    assert_eq!(ended("record = 'latest'"), [Role::Record]);
    assert_eq!(ended("motion = 'lossless'"), [Role::Motion]);
    assert_eq!(ended("motion = false"), [Role::Record, Role::Wall]);
}
