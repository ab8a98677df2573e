//! Tests of frameshare across processes.
