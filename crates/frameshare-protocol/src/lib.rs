//! What crosses between an exporter and its readers: messages, shared-page layouts, limits.
