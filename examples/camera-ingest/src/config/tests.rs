// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use std::io::Write;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn parse(text: &str) -> Result<Config, Vec<String>> {
    parse_in(text, Path::new("/none"))
}

fn parse_in(text: &str, folder: &Path) -> Result<Config, Vec<String>> {
    Config::parse(text, folder, Passwords::Read)
        .map_err(|problems| problems.iter().map(|problem| problem.to_string()).collect())
}

#[test]
fn camera_is_one_line() {
    let config =
        parse("[cameras]\nyard = \"rtsp://192.0.2.1/main\"\ngate = 'pattern:ball?rate=5'\n").unwrap();
    let [yard, gate] = config.cameras.as_slice() else { panic!("{:?}", config.cameras) };
    let url = "rtsp://192.0.2.1/main".to_owned();
    assert_eq!(yard.main, Source::Rtsp { url, user: None, password: None });
    assert_eq!(
        (yard.name.as_str(), yard.decode, yard.record, yard.motion, yard.model),
        ("yard", Decode::Main, true, true, false)
    );
    let pattern = "ball".to_owned();
    assert_eq!(gate.main, Source::Pattern { pattern, width: 640, height: 360, rate: 5 });
    assert_eq!(config.wall.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.recording.folder, Path::new("/none/recordings"));
    assert_eq!(config.recording.max_bytes, Some(10_000_000_000));
}

#[test]
fn camera_table_sets_everything() {
    let config = parse(
        "[defaults]\nmodel = true\n
         [cameras.yard]\nmain = 'rtsp://host/1'\nsub = 'rtsp://host/2'\nrecord = 'latest'\nmotion = 'lossless'
         [[cameras.yard.zones]]\nname = 'door'\npoints = [[0, 0], [1.0, 0.5], [0.5, 1]]
         [cameras.gate]\nmain = 'rtsp://host/3'\ndecode = 'never'
         [recording]\nsegment = '5min'\nmax-age = 'never'\nmax-size = '2GB'
         [access]\nusers = [1000]\n[groups]\nrecord = 2",
    );
    let config = config.unwrap();
    let [yard, gate] = config.cameras.as_slice() else { panic!("{:?}", config.cameras) };
    assert_eq!(yard.decode, Decode::Sub);
    assert_eq!((yard.policies.record, yard.policies.motion), (Policy::Latest, Policy::Lossless));
    assert_eq!(yard.zones[0].points[1], [1.0, 0.5]);
    assert!(yard.model && !gate.model && !gate.motion && gate.record);
    assert_eq!(config.recording.segment, Duration::from_secs(300));
    assert_eq!((config.recording.max_age, config.recording.max_bytes), (None, Some(2_000_000_000)));
    assert_eq!((config.access.users.as_slice(), config.groups.record), ([1000].as_slice(), 2));
}

#[test]
fn every_error_has_its_line_and_key() {
    let text = "[cameras]
cam0 = 5
cam1 = { main = 'ftp://host/x', decode = 'both', colour = 1 }
cam2 = 'pattern:ball?width=13'
a.b = 'rtsp://host/x'
cam3 = {}
cam4 = 'none.mp4'
cam6 = { main = 'rtsp://host/x', record = 'first' }

[recording]
segment = '60'
max-sise = '1GB'

[wall]
listen = 'localhost'

[groups]
record = 0

[[cameras.cam5.zones]]
points = [[0, 2], [1, 1], [0, 1]]
";
    let problems = parse(text).unwrap_err();
    let expected = [
        ("2: cameras.cam0: ", "integer"),
        ("3: cameras.cam1.main: ", "ftp"),
        ("3: cameras.cam1.decode: ", "both"),
        ("3: cameras.cam1.colour: ", "unknown field `colour`"),
        ("4: cameras.cam2.main: ", "width '13'"),
        ("5: cameras.a.b: ", "unknown field `b`"),
        ("6: cameras.cam3: ", "no main stream"),
        ("7: cameras.cam4.main: ", "/none/none.mp4"),
        ("8: cameras.cam6.record: ", "expected true, false, \"latest\" or \"lossless\""),
        ("11: recording.segment: ", "expected a number and ms"),
        ("12: recording.max-sise: ", "unknown field `max-sise`"),
        ("15: wall.listen: ", "socket address"),
        ("18: groups.record: ", "at least 1"),
        ("20: cameras.cam5: ", "no main stream"),
    ];
    for (begin, part) in expected {
        assert!(
            problems.iter().any(|problem| problem.starts_with(begin) && problem.contains(part)),
            "{begin}{part} in {problems:#?}"
        );
    }
}

#[test]
fn errors_of_syntax_do_not_hide_others() {
    let problems = parse("[cameras]\ncam0 = \n\n[recording]\nsegment = '0s'\n").unwrap_err();
    assert!(problems.iter().any(|problem| problem.starts_with("2: ")), "{problems:?}");
    assert!(problems.iter().any(|problem| problem.starts_with("5: recording.segment")), "{problems:?}");
}

#[test]
fn configuration_without_cameras_is_refused() {
    let problems = parse("[wall]\n").unwrap_err();
    assert!(problems[0].contains("no cameras"), "{problems:?}");
}

#[test]
fn passwords_come_from_files_and_are_not_shown() {
    let folder = folder();
    let mut file = std::fs::File::create(folder.path().join("secret")).unwrap();
    file.write_all(b"hunter2\r\n").unwrap();
    let text = "[cameras.cam0]\nmain = 'rtsp://host/1'\nsub = 'rtsp://host/2'\nuser = 'admin'\npassword-file = 'secret'
                [cameras]\ncam1 = 'rtsp://admin:hunt%65r2@host:554/1'";
    let config = parse_in(text, folder.path()).unwrap();
    for source in
        [Some(&config.cameras[0].main), config.cameras[0].sub.as_ref(), Some(&config.cameras[1].main)]
    {
        let Some(Source::Rtsp { url, user, password }) = source else { panic!("{source:?}") };
        assert!(!url.contains("admin"), "{url}");
        assert_eq!(user.as_deref(), Some("admin"));
        assert_eq!(password.as_ref().unwrap().expose(), "hunter2");
    }
    assert!(!format!("{config:?}").contains("hunter2"));
    assert!(!config.cameras.iter().any(|camera| camera.main.to_string().contains("hunt")));
}

#[test]
fn missing_passwords_are_errors() {
    let ways = [
        ("password-file = 'absent'", "/none/absent"),
        ("password-env = 'CAMERA_INGEST_TEST_ABSENT'", "is not set"),
        ("password-credential = 'cam0'", "LoadCredential=cam0"),
        ("password-env = 'PATH'\npassword-file = 'absent'", "another password"),
    ];
    for (way, part) in ways {
        let text = format!("[cameras.cam0]\nmain = 'rtsp://host/1'\nuser = 'admin'\n{way}\n");
        let problems = parse(&text).unwrap_err().join("\n");
        assert!(problems.contains(part), "{way}: {problems}");
    }
    let text = "[cameras.cam0]\nmain = 'rtsp://host/1'\npassword-env = 'PATH'\n";
    assert!(parse(text).unwrap_err()[0].contains("without a user"));
    let both = "[cameras.cam0]\nmain = 'rtsp://a:b@host/1'\nuser = 'admin'\n";
    assert!(parse(both).unwrap_err()[0].contains("in the URL"));
}

#[test]
fn skipped_passwords_are_not_read_but_checked() {
    let parse = |text: &str| Config::parse(text, Path::new("/none"), Passwords::Skip);
    for key in ["password-file", "password-env", "password-credential"] {
        let text = format!("[cameras.cam0]\nmain = 'rtsp://host/1'\nuser = 'admin'\n{key} = 'absent'\n");
        let config = parse(&text).unwrap();
        let Source::Rtsp { user, password, .. } = &config.cameras[0].main else { panic!("{config:?}") };
        assert_eq!(user.as_deref(), Some("admin"), "{key}");
        assert!(password.is_none(), "{key}");
    }
    let two = "[cameras.cam0]\nmain = 'rtsp://host/1'\npassword-file = 'a'\npassword-env = 'A'\n";
    let problems = parse(two).unwrap_err();
    let problems: Vec<_> = problems.iter().map(ToString::to_string).collect();
    assert!(problems.join("\n").contains("another password"), "{problems:?}");
    assert!(problems.join("\n").contains("without a user"), "{problems:?}");
}

#[test]
fn secrets_in_texts_are_redacted() {
    for (text, redacted) in [
        ("connecting to rtsp://admin:se/c@r%65t@host/x; waits", "connecting to rtsp://***@host/x; waits"),
        ("no file /etc/rtsp:/admin:secret@host/x\n2: a", "no file /etc/rtsp:/***@host/x\n2: a"),
        ("rtsp://host/user=a&Password=b/c?&channel=1.sdp", "rtsp://host/user=a&Password=***&channel=1.sdp"),
        ("'rtsp://host/x?a=1&pwd=b' is\tlost", "'rtsp://host/x?a=1&pwd=*** is\tlost"),
        ("page at http://127.0.0.1:8080/", "page at http://127.0.0.1:8080/"),
        ("camera-ingest@decode-cam0: ended", "camera-ingest@decode-cam0: ended"),
    ] {
        assert_eq!(redact(text), redacted);
        assert_eq!(redact(redacted), redacted);
    }
    // Passwords are found in all their forms, the longer one first, and short ones never.
    ["p1", "top+secret/1", "top+secret/11"].into_iter().for_each(|text| _ = Secret::from(text.to_owned()));
    assert_eq!(redact("top+secret/11,top%2Bsecret%2F1,top+secret,p1"), "***,***,top+secret,p1");
}

#[test]
fn passwords_in_errors_are_redacted() {
    let problems = parse(
        "[cameras]\ncam0 = 'rtsp://admin:hunter2@/x'\ncam1 = 'http://admin:hunter2@host/x'
         cam2 = 'rtsp://admin:hunt/er2@host/x'\ncam3 = 'rtsp://admin:hunt?er2@host/x'\n",
    );
    let problems = problems.unwrap_err();
    assert_eq!(problems.len(), 4, "{problems:?}");
    assert!(problems[2..].iter().all(|problem| problem.contains("%2F")), "{problems:?}");
    assert!(!problems.join("").contains("hunt"), "{problems:?}");
}

#[test]
fn only_capture_gets_secrets_and_only_of_its_cameras() {
    let config = parse(
        "[cameras]\ncam0 = 'rtsp://admin:first-secret@host/1?pwd=query-secret'\n         cam1 = 'rtsp://admin:other-secret@host/1'\n",
    );
    let config = config.unwrap();
    let part = |passwords| {
        let text = serde_json::to_string(&config.part(&["cam0".into()], passwords).unwrap()).unwrap();
        let again: Config = serde_json::from_str(&text).unwrap();
        assert_eq!(again.cameras.len(), 1);
        text
    };
    let (read, skip) = (part(Passwords::Read), part(Passwords::Skip));
    assert!(read.contains("first-secret") && read.contains("query-secret"), "{read}");
    assert!(!read.contains("other-secret") && !skip.contains("secret"), "{read} {skip}");
}

#[test]
fn default_configuration_is_valid() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("demo.toml");
    let text = fs::read_to_string(file).unwrap();
    // The clip is fetched by the demo.
    let folder = folder();
    let place = folder.path().join("a/b");
    fs::create_dir_all(&place).unwrap();
    fs::create_dir(folder.path().join(".demo")).unwrap();
    fs::write(folder.path().join(".demo/bigbuckbunny.mp4"), "").unwrap();
    let config = parse_in(&text, &place).unwrap();
    assert_eq!(config.cameras.len(), 4);
}

#[test]
fn schema_names_all_keys() {
    let schema = serde_json::to_string(&schemars::schema_for!(file::File)).unwrap();
    for key in ["password-credential", "hang-timeout", "max-size", "lossless", "additionalProperties\":false"]
    {
        assert!(schema.contains(key), "{key} in {schema}");
    }
}
