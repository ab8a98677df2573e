// SPDX-License-Identifier: MIT OR Apache-2.0

//! Processes of a site: one for each role and group of cameras.

mod overview;
#[cfg(test)]
mod tests;

pub use overview::Overview;

use crate::{
    config::{Camera, Config},
    roles::Role,
};

/// A process to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// Role and camera, or role and number of the group.
    pub name: String,
    pub role: Role,
    pub cameras: Vec<Camera>,
    /// Maximum number of cameras, and the other settings that the role uses, as text.
    settings: (usize, String),
}

impl Planned {
    pub fn names(&self) -> Vec<String> {
        self.cameras.iter().map(|camera| camera.name.clone()).collect()
    }

    /// Returns whether the process of `old` can go on as this one: all roles but the model and the
    /// wall start and stop single cameras.
    pub fn continues(&self, old: &Self) -> bool {
        let mut pairs = old.cameras.iter().zip(&self.cameras);
        let mut has_cameras =
            || old.cameras.len() == self.cameras.len() && pairs.all(|(old, new)| self.role.goes_on(old, new));
        (&self.name, &self.settings) == (&old.name, &old.settings)
            && (!matches!(self.role, Role::Model | Role::Wall) || has_cameras())
    }
}

/// Returns the processes of a configuration, capture first. A camera stays in its process of
/// `running`; a new one joins the first process that has room.
pub fn processes(config: &Config, running: &[Planned]) -> Vec<Planned> {
    let Config { groups, access, recording, model, wall, .. } = config;
    let roles = [
        (Role::Capture, groups.capture, format!("{access:?}")),
        (Role::Decode, groups.decode, format!("{access:?}")),
        (Role::Record, groups.record, format!("{recording:?}")),
        (Role::Motion, groups.motion, String::new()),
        (Role::Model, groups.model, format!("{model:?}")),
        (Role::Wall, usize::MAX, format!("{wall:?}")),
    ];
    roles.into_iter().flat_map(|(role, size, uses)| of_role(config, role, &(size, uses), running)).collect()
}

fn of_role(config: &Config, role: Role, settings: &(usize, String), running: &[Planned]) -> Vec<Planned> {
    let size = settings.0;
    let is_group = size > 1 && role != Role::Wall;
    let place = |camera: &Camera| {
        let mut processes =
            running.iter().filter(|process| (process.role, process.settings.0) == (role, size));
        let process = processes.find(|process| process.names().contains(&camera.name));
        process.filter(|_| is_group).map(|process| process.name.clone())
    };
    let cameras = config.cameras.iter().filter(|camera| role.takes(camera));
    let mut cameras: Vec<_> = cameras.map(|camera| (place(camera), camera.clone())).collect();
    cameras.sort_by_key(|(place, _)| place.is_none());
    let mut planned: Vec<Planned> = Vec::new();
    for (mut place, camera) in cameras {
        for number in 1.. {
            let command = role.command();
            let name = place.take().unwrap_or_else(|| match (role, size) {
                (Role::Wall, _) => command.to_owned(),
                (_, 1) => format!("{command}-{}", camera.name),
                _ => format!("{command}-{number}"),
            });
            match planned.iter_mut().find(|process| process.name == name) {
                Some(process) if process.cameras.len() == size => continue,
                Some(process) => process.cameras.push(camera),
                None => {
                    planned.push(Planned { name, role, cameras: vec![camera], settings: settings.clone() })
                }
            }
            break;
        }
    }
    planned
}
