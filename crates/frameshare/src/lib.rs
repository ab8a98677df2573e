//! Share video frames between processes without copying them.
