// SPDX-License-Identifier: MIT OR Apache-2.0

//! Processes of a site: one for each role and group of cameras.

mod overview;

pub use overview::Overview;

use crate::{
    config::{Access, Camera, Config, Decode, Model, Recording, Wall},
    roles::Role,
};

/// A process to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// Role and camera, or role and number of the group.
    pub name: String,
    pub role: Role,
    pub cameras: Vec<String>,
    /// Everything in the configuration that the process depends on: it is started again when this
    /// changes.
    basis: Basis,
}

/// Parts of the configuration that matter to a role.
#[derive(Clone, Debug, PartialEq)]
struct Basis {
    cameras: Vec<Camera>,
    access: Access,
    recording: Option<Recording>,
    model: Option<Model>,
    wall: Option<Wall>,
}

impl Planned {
    fn new(config: &Config, role: Role, name: String, cameras: &[Camera]) -> Self {
        let basis = Basis {
            cameras: cameras.to_vec(),
            access: config.access.clone(),
            recording: matches!(role, Role::Record | Role::Wall).then(|| config.recording.clone()),
            model: (role == Role::Model).then(|| config.model.clone()),
            wall: (role == Role::Wall).then(|| config.wall.clone()),
        };
        let cameras = cameras.iter().map(|camera| camera.name.clone()).collect();
        Self { name, role, cameras, basis }
    }
}

/// Returns the processes of a configuration, capture first.
pub fn processes(config: &Config) -> Vec<Planned> {
    let groups = &config.groups;
    let everything = config.cameras.len().max(1);
    let roles = [
        (Role::Capture, groups.capture),
        (Role::Decode, groups.decode),
        (Role::Record, groups.record),
        (Role::Motion, groups.motion),
        (Role::Model, groups.model),
        (Role::Wall, everything),
    ];
    roles.into_iter().flat_map(|(role, size)| of_role(config, role, size)).collect()
}

fn of_role(config: &Config, role: Role, size: usize) -> Vec<Planned> {
    let cameras: Vec<_> = config.cameras.iter().filter(|camera| takes(role, camera)).cloned().collect();
    let groups = cameras.chunks(size.max(1)).enumerate();
    let planned = groups.map(|(number, group)| {
        let name = match (role, group) {
            (Role::Wall, _) => role.command().to_owned(),
            (_, [camera]) if size == 1 => format!("{}-{}", role.command(), camera.name),
            _ => format!("{}-{}", role.command(), number + 1),
        };
        Planned::new(config, role, name, group)
    });
    planned.collect()
}

/// Returns whether a role has work for a camera.
fn takes(role: Role, camera: &Camera) -> bool {
    match role {
        Role::Capture | Role::Wall => true,
        Role::Decode => camera.decode != Decode::Never && !camera.main.is_raw(),
        Role::Record => camera.record,
        Role::Motion => camera.motion,
        Role::Model => camera.model,
    }
}
