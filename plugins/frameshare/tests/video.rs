// SPDX-License-Identifier: MIT OR Apache-2.0

//! The engine's table of formats, compared with GStreamer's own in all formats, odd sizes and
//! interlacings, and its reading of caps.

use frameshare::{
    Endpoint, Interrupt, Plane, Policy,
    reader::{Config, Frame, Item, Reader},
    video::{ColorModel, PixelFormat, VideoError, VideoFormat},
};
use glib::translate::IntoGlib;
use gst_video::{VideoFormat as GstFormat, VideoInfo, VideoInterlaceMode};

const WIDTHS: [u32; 18] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 33, 64, 65, 129, 321, 1920];
const HEIGHTS: [u32; 13] = [1, 2, 3, 4, 5, 9, 17, 33, 65, 129, 241, 577, 1080];
const MODES: [VideoInterlaceMode; 3] =
    [VideoInterlaceMode::Progressive, VideoInterlaceMode::Interleaved, VideoInterlaceMode::Alternate];

/// Returns the known format of a name, and calls `check` with every size that GStreamer accepts.
fn for_each_size(name: &str, format: GstFormat, mut check: impl FnMut(&VideoInfo, VideoFormat)) -> usize {
    let mut sizes = 0;
    for mode in MODES {
        for (width, height) in WIDTHS.iter().flat_map(|width| HEIGHTS.map(|height| (*width, height))) {
            let info = VideoInfo::builder(format, width, height).interlace_mode(mode);
            let Ok(info) = info.fps(gst::Fraction::new(30000, 1001)).build() else { continue };
            let caps = info.to_caps().unwrap().to_string();
            check(&info, VideoFormat::of_caps(&caps).unwrap_or_else(|error| panic!("{name}: {error}")));
            sizes += 1;
        }
    }
    sizes
}

/// Returns all formats of this GStreamer that have planes, with their names.
fn formats() -> Vec<(String, GstFormat)> {
    gst::init().unwrap();
    let named = GstFormat::iter_raw().map(|format| (format.to_str().to_string(), format));
    let formats: Vec<_> = named.filter(|(name, _)| name != "DMA_DRM").collect();
    assert!(formats.len() >= 111, "only {} formats", formats.len());
    formats
}

#[test]
fn default_layout_equals_gstreamers_in_every_format() {
    for (name, format) in formats() {
        let sizes = for_each_size(&name, format, |info, ours| {
            let what = format!("{name} {}x{} {:?}", info.width(), info.height(), info.interlace_mode());
            let places = info.offset().iter().zip(info.stride());
            let places = places.map(|(offset, stride)| Plane { offset: *offset as u64, stride: *stride });
            let planes = ours.default_planes().unwrap();
            assert_eq!(planes, places.collect::<Vec<_>>(), "{what}");
            let size = ours.size().unwrap();
            // GStreamer 1.22 reserves twice the chroma that these tiles have.
            let has_spare = name == "NV12_16L32S" && size < info.size() as u64;
            assert!(size == info.size() as u64 || has_spare, "{what}: {size} for {}", info.size());
            for index in 0..planes.len() {
                let plane = ours.plane(index, &[], size).unwrap();
                assert_eq!(plane, ours.plane(index, &planes, size).unwrap(), "{what}");
                check_rows(info, index, &plane, &what);
            }
            let last = planes.len() - 1;
            assert!(ours.plane(last, &planes, planes[last].offset).is_err(), "{what}");
        });
        assert!(sizes > 500, "{name}: {sizes} sizes");
    }
}

/// Compares the rows of a plane with those that GStreamer's components have.
fn check_rows(info: &VideoInfo, index: usize, plane: &frameshare::video::PlaneLayout, what: &str) {
    let format = info.format_info();
    if format.has_palette() && index == 1 {
        return assert_eq!((plane.width, plane.height, plane.row_bytes), (256, 1, 1024), "{what}");
    }
    let components = (0..info.n_components() as u8).filter(|c| info.comp_plane(*c) as usize == index);
    let components: Vec<u8> = components.collect();
    let widest = components.iter().map(|c| info.comp_width(*c)).max();
    let rows = components.iter().map(|c| format.scale_height(*c, info.field_height())).max();
    assert_eq!((Some(plane.width), Some(plane.height)), (widest, rows), "{what} plane {index}");
    if let Some(tile) = plane.tile {
        assert!(format.is_tiled(), "{what}");
        let theirs = format.tile_info(index as u32);
        let found = (tile.row_bytes, tile.rows, tile.bytes());
        assert_eq!(found, (theirs.stride(), theirs.height(), theirs.size() as usize), "{what} plane {index}");
        return;
    }
    assert!(!format.is_tiled(), "{what}");
    let bytes =
        components.iter().map(|c| info.comp_width(*c) as usize * info.comp_pstride(*c) as usize).max();
    // GStreamer does not define the bytes of a row for formats that pack several samples in a word.
    if !format.is_complex() && bytes != Some(0) {
        assert_eq!(Some(plane.row_bytes), bytes, "{what} plane {index}");
    }
}

#[test]
fn format_without_planes_is_an_error() {
    let caps = "video/x-raw(memory:DMABuf), format=DMA_DRM, drm-format=NV12, width=64, height=64";
    assert_eq!(VideoFormat::of_caps(caps), Err(VideoError::NoPlanes { name: "DMA_DRM" }));
    let unknown = VideoError::UnknownFormat { name: "NV99".into() };
    assert_eq!(VideoFormat::of_caps("video/x-raw, format=NV99, width=64, height=64"), Err(unknown));
}

#[test]
fn color_model_equals_gstreamers() {
    for (name, format) in formats() {
        let info = VideoInfo::builder(format, 16, 16).build().unwrap();
        let theirs = match info.format_info() {
            format if format.is_rgb() => ColorModel::Rgb,
            format if format.is_gray() => ColorModel::Gray,
            _ => ColorModel::Yuv,
        };
        let ours: PixelFormat = name.parse().unwrap();
        assert_eq!((ours.color_model(), ours.plane_count()), (theirs, info.n_planes() as usize), "{name}");
    }
}

/// Returns the numbers of a colorimetry.
fn numbers(info: &VideoInfo) -> [i32; 4] {
    let color = info.colorimetry();
    let (matrix, primaries) = (color.matrix().into_glib(), color.primaries().into_glib());
    [color.range().into_glib(), matrix, color.transfer().into_glib(), primaries]
}

#[test]
fn fields_of_caps_are_read_as_gstreamer_reads_them() {
    gst::init().unwrap();
    let fields = [
        "",
        ", colorimetry=bt601",
        ", colorimetry=bt709, framerate=25/1",
        ", colorimetry=smpte240m, framerate=0/1, max-framerate=60/1",
        ", colorimetry=sRGB, pixel-aspect-ratio=12/11",
        ", colorimetry=bt2020",
        ", colorimetry=bt2020-10, interlace-mode=interleaved",
        ", colorimetry=bt2100-pq, interlace-mode=mixed",
        ", colorimetry=bt2100-hlg, interlace-mode=fields",
        ", colorimetry=1:4:0:0",
        ", colorimetry=2:6:13:7",
        ", colorimetry=1:0:0:0",
        ", colorimetry=2:3:16:12",
        ", colorimetry=nonsense",
    ];
    for format in ["NV12", "RGB", "GRAY8", "v210"] {
        for (height, fields) in [240, 576, 577, 2160].iter().flat_map(|h| fields.map(|fields| (h, fields))) {
            let text = format!("video/x-raw, format={format}, width=320, height={height}{fields}");
            let caps: gst::Caps = text.parse().unwrap();
            let theirs = VideoInfo::from_caps(&caps).unwrap();
            // As a user and as GStreamer writes it.
            for text in [text, caps.to_string()] {
                let ours = VideoFormat::of_caps(&text).unwrap();
                let color = ours.colorimetry;
                let found =
                    [color.range as i32, color.matrix as i32, color.transfer as i32, color.primaries as i32];
                assert_eq!(found, numbers(&theirs), "{text}");
                let rate =
                    ours.rate.or(ours.max_rate).map_or((0, 1), |rate| (rate.numerator, rate.denominator));
                assert_eq!(rate, (theirs.fps().numer() as u32, theirs.fps().denom() as u32), "{text}");
                let ratio = (ours.pixel_aspect_ratio.numerator, ours.pixel_aspect_ratio.denominator);
                assert_eq!(ratio, (theirs.par().numer() as u32, theirs.par().denom() as u32), "{text}");
                assert_eq!(ours.interlacing as i32, theirs.interlace_mode().into_glib(), "{text}");
                // And back.
                let caps: gst::Caps = ours.to_caps().parse().unwrap();
                assert_eq!(numbers(&VideoInfo::from_caps(&caps).unwrap()), numbers(&theirs), "{text}");
                assert_eq!(VideoFormat::of_caps(&caps.to_string()), Ok(ours), "{text}");
            }
        }
    }
}

/// `framesharesink`, and a reader without GStreamer.
struct Stream {
    _folder: tempfile::TempDir,
    upstream: gst_check::Harness,
    reader: Reader,
    interrupt: Interrupt,
}

impl Stream {
    fn new() -> Self {
        gst::init().unwrap();
        gstframeshare::plugin_register_static().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s.sock");
        let sink = gst::ElementFactory::make("framesharesink").property("sync", false);
        let sink = sink.property("socket-path", socket.to_str().unwrap()).build().unwrap();
        let mut upstream = gst_check::Harness::with_element(&sink, Some("sink"), None);
        upstream.play();
        let (endpoint, interrupt) = (Endpoint::at(socket).unwrap(), Interrupt::new().unwrap());
        let config = Config::default().policy(Policy::Lossless);
        let reader = Reader::connect(&endpoint, config, &interrupt).unwrap();
        Self { _folder: folder, upstream, reader, interrupt }
    }

    fn send(&mut self, buffer: gst::Buffer) -> Frame {
        self.upstream.push(buffer).unwrap();
        loop {
            let item = self.reader.next(Some(std::time::Duration::from_secs(20)), &self.interrupt);
            if let Item::Frame(frame) = item.unwrap().expect("no frame within 20 s") {
                return frame;
            }
        }
    }
}

#[test]
fn planes_of_sinks_frames_equal_gstreamers() {
    let mut stream = Stream::new();
    let mut checked = 0;
    for (name, format) in formats() {
        for (width, height) in [(321, 241), (17, 5), (1, 1)] {
            let info = VideoInfo::builder(format, width, height).build().unwrap();
            stream.upstream.set_src_caps(info.to_caps().unwrap());
            let bytes: Vec<u8> = (0..info.size()).map(|index| (index * 7 + index / 251) as u8).collect();
            let buffer = gst::Buffer::from_slice(bytes);
            let frame = stream.send(buffer.clone());
            let theirs = gst_video::VideoFrameRef::from_buffer_ref_readable(&buffer, &info).unwrap();
            assert_eq!(frame.format().unwrap().pixels.name(), name);
            for index in 0..info.n_planes() {
                let (plane, data) = (frame.plane(index as usize).unwrap(), theirs.plane_data(index).unwrap());
                let (rows, stride) = match plane.tile {
                    Some(_) => (plane.range.len() / plane.row_bytes, plane.row_bytes),
                    None => (plane.height as usize, info.stride()[index as usize] as usize),
                };
                for row in 0..rows {
                    let (ours, theirs) =
                        (plane.row_slice(row).unwrap(), &data[row * stride..][..plane.row_bytes]);
                    assert!(ours == theirs, "{name} {width}x{height} plane {index} row {row}");
                }
                checked += rows;
            }
        }
    }
    assert!(checked > 40_000, "only {checked} rows");
}

#[test]
fn cropped_frame_is_an_error() {
    let mut stream = Stream::new();
    let info = VideoInfo::builder(GstFormat::Nv12, 16, 16).build().unwrap();
    stream.upstream.set_src_caps(info.to_caps().unwrap());
    let buffer = |is_cropped| {
        let mut buffer = gst::Buffer::with_size(32 * 32 * 3 / 2).unwrap();
        let new = buffer.make_mut();
        let flags = gst_video::VideoFrameFlags::empty();
        gst_video::VideoMeta::add(new, flags, GstFormat::Nv12, 32, 32).unwrap();
        if is_cropped {
            gst_video::VideoCropMeta::add(new, (8, 8, 16, 16));
        }
        buffer
    };
    assert_eq!(stream.send(buffer(true)).plane(0).unwrap_err(), VideoError::Cropped);
    assert_eq!(stream.send(buffer(false)).plane(0).unwrap().stride, 32);
}
