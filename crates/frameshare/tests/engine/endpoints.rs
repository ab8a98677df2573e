// SPDX-License-Identifier: MIT OR Apache-2.0

//! Endpoints: permissions of the socket, ownership of the name, and the next exporter.

use crate::stream::{Stream, holds};
use frameshare::{
    Endpoint, Policy, Wait,
    exporter::{self, BindError, ConfigError, Exporter},
    reader::{self, Item, ReadError},
};
use std::{thread, time::Duration};

#[test]
fn socket_open_to_others_needs_path_and_mode() {
    let stream = Stream::new();
    let refused =
        |endpoint: &Endpoint, config: exporter::Config| match Exporter::bind(endpoint, config, |_| ()) {
            Err(BindError::Config(error)) => error,
            other => panic!("{other:?}"),
        };
    let named = Endpoint::of_stream(&"frameshare-test".parse().unwrap()).unwrap();
    let uids = |socket_mode| exporter::Config::default().allowed_uids(vec![1]).socket_mode(socket_mode);
    let gids = exporter::Config::default().allowed_gids(vec![1]);
    let mode = |socket_mode| exporter::Config::default().socket_mode(socket_mode);
    for config in [uids(0o666), gids.clone(), mode(0o666)] {
        assert_eq!(refused(&named, config), ConfigError::NamedForOthers);
    }
    for config in [uids(0o600), uids(0o644), gids] {
        let error = refused(&stream.endpoint, config);
        assert!(matches!(error, ConfigError::OthersKeptOut(_)), "{error}");
        assert!(error.to_string().contains("0666"), "{error}");
    }
    let error = refused(&stream.endpoint, mode(0o1666));
    assert_eq!(error, ConfigError::SocketMode(0o1666));
    assert!(error.to_string().contains("01666"), "{error}");

    let mode_of_socket = || {
        use std::os::unix::fs::PermissionsExt;
        std::fs::metadata(stream.endpoint.path()).unwrap().permissions().mode() & 0o777
    };
    let exporter = stream.exporter();
    assert_eq!(mode_of_socket(), 0o600);
    drop(exporter);
    let _exporter = stream.exporter_with(uids(0o662));
    assert_eq!(mode_of_socket(), 0o662);
    stream.reader(Policy::Lossless);
}

#[test]
fn name_in_use_is_refused_and_stale_socket_replaced() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let error = Exporter::bind(&stream.endpoint, exporter::Config::default(), |_| ()).unwrap_err();
    assert!(matches!(error, BindError::InUse { .. }), "{error}");
    assert!(error.to_string().contains(&format!("pid {}", std::process::id())), "{error}");
    drop(exporter);
    assert!(!stream.endpoint.path().exists());
    // The socket of a killed exporter, without a listener.
    drop(std::os::unix::net::UnixListener::bind(stream.endpoint.path()).unwrap());
    drop(stream.exporter());
    std::fs::write(stream.endpoint.path(), "precious").unwrap();
    let error = Exporter::bind(&stream.endpoint, exporter::Config::default(), |_| ()).unwrap_err();
    assert!(matches!(error, BindError::Io { .. }), "{error}");
    assert_eq!(std::fs::read_to_string(stream.endpoint.path()).unwrap(), "precious");
}

#[test]
fn reconnecting_reader_finds_next_exporter() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut steady = stream.try_reader(reader::Config::default().reconnect(true)).unwrap();
    let mut fickle = stream.reader(Policy::Latest);
    stream.publish(&exporter, 1).unwrap();
    assert!(holds(&stream.next_frame(&mut steady), 1) && holds(&stream.next_frame(&mut fickle), 1));
    let session = steady.stats().session;
    drop(exporter);
    let exporter = thread::scope(|scope| {
        let next = scope.spawn(|| {
            thread::sleep(Duration::from_millis(100));
            let exporter = stream.exporter();
            exporter.wait_for_reader(Wait::Forever).unwrap();
            stream.publish(&exporter, 2).unwrap();
            exporter
        });
        assert!(matches!(stream.next(&mut steady), Ok(Item::Reconnected)));
        next.join().unwrap()
    });
    let frame = stream.next_frame(&mut steady);
    assert!(holds(&frame, 2) && frame.descriptor().sequence.0 == 1 && frame.session() != session);
    assert!(matches!(stream.next(&mut fickle), Err(ReadError::Stopped(_))));
    let stats = steady.stats();
    assert_eq!((stats.received, stats.reconnects), (2, 1));
    drop(exporter);
}
