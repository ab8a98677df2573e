//! GStreamer elements that share video frames between processes without copying them.
