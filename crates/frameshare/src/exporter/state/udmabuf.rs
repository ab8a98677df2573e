// SPDX-License-Identifier: MIT OR Apache-2.0

//! Admission of other users' readers where `/dev/udmabuf` makes sealed memory writable.

use crate::{exporter::config::Config, sys::Udmabuf};
use frameshare_core::exporter::notice::Notice;

/// Consequences of the probe.
#[derive(Debug, Default, PartialEq)]
pub struct Others {
    /// The refusal of every reader of another user.
    pub refusal: Option<String>,
    /// A warning for the exporter's owner.
    pub notice: Option<Notice>,
}

/// Decides from the configuration, and from the probe where other users may read at all and the
/// configuration does not accept that they write. Readers of the exporter's own user and root are
/// not concerned: they can write its memory anyway (ptrace(2)).
pub fn decide<'a>(config: &Config, probe: impl FnOnce() -> &'a Udmabuf) -> Others {
    if config.allow_udmabuf || !config.lets_others_read() {
        return Others::default();
    }
    let (refusal, why) = match probe() {
        Udmabuf::Missing | Udmabuf::Refuses => return Others::default(),
        Udmabuf::Writable => {
            let why = "this kernel lets readers write into shared memory through /dev/udmabuf";
            let refusal = format!("permission denied: {why}, so the exporter refuses readers of other users");
            (Some(refusal), why.to_owned())
        }
        Udmabuf::Untried(why) => (
            None,
            format!(
                "this kernel may let readers write into shared memory through /dev/udmabuf, and that could not be tried: {why}"
            ),
        ),
    };
    let notice = Notice::OthersCouldWrite { refused: refusal.is_some(), why };
    Others { refusal, notice: Some(notice) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(config: &Config, found: &Udmabuf) -> (bool, Option<bool>) {
        let others = decide(config, || found);
        let warned = others.notice.map(|notice| match notice {
            Notice::OthersCouldWrite { refused, why } => {
                assert!(why.contains("/dev/udmabuf"), "{why}");
                refused
            }
            other => panic!("{other:?}"),
        });
        (others.refusal.is_some(), warned)
    }

    #[test]
    fn other_users_are_refused_writable_memory() {
        let untried = Udmabuf::Untried("cannot open /dev/udmabuf: Permission denied".into());
        let uids = Config { allowed_uids: vec![65534], ..Config::default() };
        let gids = Config { allowed_gids: vec![65534], ..Config::default() };
        for config in [&uids, &gids] {
            assert_eq!(decided(config, &Udmabuf::Missing), (false, None));
            assert_eq!(decided(config, &Udmabuf::Refuses), (false, None));
            assert_eq!(decided(config, &Udmabuf::Writable), (true, Some(true)));
            assert_eq!(decided(config, &untried), (false, Some(false)));
        }
    }

    #[test]
    fn device_is_not_probed_without_need() {
        let private = Config::default();
        let allowing = Config { allowed_uids: vec![65534], allow_udmabuf: true, ..Config::default() };
        for config in [private, allowing] {
            assert_eq!(decide(&config, || panic!("it is probed")), Others::default());
        }
    }
}
