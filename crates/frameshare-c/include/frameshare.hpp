// SPDX-License-Identifier: MIT OR Apache-2.0

/// @file
/// Owning types for libframeshare, C++17: each closes or releases what it owns when it is destroyed, can
/// be moved and not copied. frameshare.h describes each function; a failure is thrown as an Error.

#ifndef FRAMESHARE_HPP
#define FRAMESHARE_HPP

#include "frameshare.h"

#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace frameshare {

/// A call that failed.
class Error : public std::runtime_error {
public:
  Error (frameshare_status status, const std::string &message) : std::runtime_error (message), status_ (status) {}

  frameshare_status status () const noexcept { return status_; }

private:
  frameshare_status status_;
};

/// Throws the last failure of this thread if the status is one.
inline void
check (frameshare_status status)
{
  if (status == FRAMESHARE_OK)
    return;
  const bool is_failure = status != FRAMESHARE_TIMEOUT && status != FRAMESHARE_END_OF_STREAM;
  throw Error (status, is_failure ? frameshare_last_error () : frameshare_status_name (status));
}

/// The timeout of a wait without limit.
inline constexpr std::chrono::nanoseconds FOREVER { -1 };

/// The structs of frameshare.h with their defaults.
struct ReaderConfig : frameshare_reader_config {
  ReaderConfig () : frameshare_reader_config FRAMESHARE_READER_CONFIG_INIT {}
};

struct ExporterConfig : frameshare_exporter_config {
  ExporterConfig () : frameshare_exporter_config FRAMESHARE_EXPORTER_CONFIG_INIT {}
};

struct PublishOptions : frameshare_publish_options {
  PublishOptions () : frameshare_publish_options FRAMESHARE_PUBLISH_OPTIONS_INIT {}
};

/// The name of the pixel format is not copied.
struct Format : frameshare_format {
  Format () : frameshare_format FRAMESHARE_FORMAT_INIT {}

  Format (const char *pixels, uint32_t columns, uint32_t rows) : Format ()
  {
    pixel_format = pixels;
    width = columns;
    height = rows;
  }
};

namespace detail {

template <auto function> struct Deleter {
  template <typename T> void operator() (T *object) const noexcept { function (object); }
};

template <typename T, auto function> using Handle = std::unique_ptr<T, Deleter<function>>;

} // namespace detail

/// A frame that may be read until it is released. Empty after a release, and after a wait without one.
class Frame {
public:
  Frame () = default;
  explicit Frame (frameshare_frame *frame) noexcept : handle_ (frame) {}

  explicit operator bool () const noexcept { return handle_ != nullptr; }
  frameshare_frame *get () const noexcept { return handle_.get (); }

  frameshare_frame_info info () const
  {
    frameshare_frame_info info = FRAMESHARE_FRAME_INFO_INIT;
    check (frameshare_frame_get_info (get (), &info));
    return info;
  }

  frameshare_format format () const
  {
    frameshare_format format = FRAMESHARE_FORMAT_INIT;
    check (frameshare_frame_get_format (get (), &format));
    return format;
  }

  frameshare_plane plane (uint32_t index) const
  {
    frameshare_plane plane = FRAMESHARE_PLANE_INIT;
    check (frameshare_frame_get_plane (get (), index, &plane));
    return plane;
  }

  frameshare_plane plane_on (uint32_t index, void *stream) const
  {
    frameshare_plane plane = FRAMESHARE_PLANE_INIT;
    check (frameshare_frame_get_plane_on (get (), index, stream, &plane));
    return plane;
  }

  void copy_plane (uint32_t index, void *target, size_t target_size, size_t stride) const
  {
    check (frameshare_frame_copy_plane (get (), index, target, target_size, stride));
  }

  void wait_on (void *stream) const { check (frameshare_frame_wait_on (get (), stream)); }
  void used_on_stream (void *stream) const { check (frameshare_frame_used_on_stream (get (), stream)); }
  void done_on (void *stream) const { check (frameshare_frame_done_on (get (), stream)); }

  void release () noexcept { handle_.reset (); }
  void release_on (void *stream) { check (frameshare_frame_release_on (handle_.release (), stream)); }

private:
  detail::Handle<frameshare_frame, frameshare_frame_release> handle_;
};

/// An item that owns its frame, and copies of its texts and payload.
struct Item {
  frameshare_item_kind kind;
  Frame frame;
  std::string caps;
  uint32_t event_kind;
  std::vector<unsigned char> event_payload;
  bool event_is_sticky;
};

/// A reader of one stream.
class Reader {
public:
  explicit Reader (const std::string &stream, const frameshare_reader_config &config = ReaderConfig ())
  {
    frameshare_reader *reader = nullptr;
    check (frameshare_reader_open (stream.c_str (), &config, &reader));
    handle_.reset (reader);
  }

  frameshare_reader *get () const noexcept { return handle_.get (); }

  /// Returns the next frame; an empty one after the timeout, and at the end of the stream (has_ended).
  Frame next (std::chrono::nanoseconds timeout = FOREVER)
  {
    frameshare_frame *frame = nullptr;
    const frameshare_status status = frameshare_reader_next (get (), timeout.count (), &frame);
    has_ended_ = status == FRAMESHARE_END_OF_STREAM || (has_ended_ && status == FRAMESHARE_TIMEOUT);
    if (status != FRAMESHARE_TIMEOUT && status != FRAMESHARE_END_OF_STREAM)
      check (status);
    return Frame (frame);
  }

  bool has_ended () const noexcept { return has_ended_; }

  /// Returns the next item, or nothing after the timeout.
  std::optional<Item> next_item (std::chrono::nanoseconds timeout = FOREVER)
  {
    frameshare_item item = FRAMESHARE_ITEM_INIT;
    const frameshare_status status = frameshare_reader_next_item (get (), timeout.count (), &item);
    if (status == FRAMESHARE_TIMEOUT)
      return std::nullopt;
    check (status);
    Item found { item.kind, Frame (item.frame), {}, item.event_kind, {}, item.event_is_sticky };
    if (item.caps != nullptr)
      found.caps = item.caps;
    const auto *payload = static_cast<const unsigned char *> (item.event_payload);
    if (item.event_size > 0)
      found.event_payload.assign (payload, payload + item.event_size);
    return found;
  }

  int fd () const
  {
    int fd = -1;
    check (frameshare_reader_get_fd (get (), &fd));
    return fd;
  }

  void interrupt (bool on = true) const { check (frameshare_reader_interrupt (get (), on)); }
  void request_key_unit () const { check (frameshare_reader_request_key_unit (get ())); }

  frameshare_reader_stats stats () const
  {
    frameshare_reader_stats stats = FRAMESHARE_READER_STATS_INIT;
    check (frameshare_reader_get_stats (get (), &stats));
    return stats;
  }

private:
  detail::Handle<frameshare_reader, frameshare_reader_close> handle_;
  bool has_ended_ = false;
};

/// A frame that is written, and then published.
class NewFrame {
public:
  explicit NewFrame (frameshare_new_frame *frame) noexcept : handle_ (frame) {}

  frameshare_new_frame *get () const noexcept { return handle_.get (); }
  frameshare_new_frame *release () noexcept { return handle_.release (); }

  frameshare_plane plane (uint32_t index) const
  {
    frameshare_plane plane = FRAMESHARE_PLANE_INIT;
    check (frameshare_new_frame_get_plane (get (), index, &plane));
    return plane;
  }

private:
  detail::Handle<frameshare_new_frame, frameshare_new_frame_discard> handle_;
};

/// An exporter of one stream.
class Exporter {
public:
  Exporter (const std::string &stream, const frameshare_format &format,
            const frameshare_exporter_config &config = ExporterConfig ())
  {
    frameshare_exporter *exporter = nullptr;
    check (frameshare_exporter_create (stream.c_str (), &format, &config, &exporter));
    handle_.reset (exporter);
  }

  frameshare_exporter *get () const noexcept { return handle_.get (); }

  void set_format (const frameshare_format &format) { check (frameshare_exporter_set_format (get (), &format)); }

  NewFrame acquire (int64_t timeout_ns = -1)
  {
    frameshare_new_frame *frame = nullptr;
    check (frameshare_exporter_acquire (get (), timeout_ns, &frame));
    return NewFrame (frame);
  }

  /// Publishes a frame, and returns its number in the stream. The frame is taken unless the time is over.
  uint64_t publish (NewFrame &&frame, const frameshare_publish_options &options = PublishOptions ())
  {
    uint64_t sequence = 0;
    frameshare_status status = frameshare_exporter_publish (get (), frame.get (), &options, &sequence);
    if (status != FRAMESHARE_TIMEOUT)
      frame.release ();
    check (status);
    return sequence;
  }

  uint64_t publish_on (NewFrame &&frame, void *stream, const frameshare_publish_options &options = PublishOptions ())
  {
    uint64_t sequence = 0;
    frameshare_status status = frameshare_exporter_publish_on (get (), frame.get (), stream, &options, &sequence);
    if (status != FRAMESHARE_TIMEOUT)
      frame.release ();
    check (status);
    return sequence;
  }

  void send_event (uint32_t kind, bool is_sticky, const void *payload, size_t payload_size)
  {
    check (frameshare_exporter_send_event (get (), kind, is_sticky, payload, payload_size));
  }

  void end_stream () { check (frameshare_exporter_end_stream (get ())); }
  void wait_for_reader (int64_t timeout_ns = -1)
  {
    check (frameshare_exporter_wait_for_reader (get (), timeout_ns));
  }

  /// Returns false after the timeout.
  bool drain (std::chrono::nanoseconds timeout)
  {
    const frameshare_status status = frameshare_exporter_drain (get (), timeout.count ());
    if (status != FRAMESHARE_TIMEOUT)
      check (status);
    return status == FRAMESHARE_OK;
  }

  void interrupt (bool on = true) const { check (frameshare_exporter_interrupt (get (), on)); }

  frameshare_exporter_stats stats () const
  {
    frameshare_exporter_stats stats = FRAMESHARE_EXPORTER_STATS_INIT;
    check (frameshare_exporter_get_stats (get (), &stats));
    return stats;
  }

private:
  detail::Handle<frameshare_exporter, frameshare_exporter_close> handle_;
};

/// An announcement of a stream capture into a CUDA graph, until it is destroyed.
class Capture {
public:
  Capture ()
  {
    frameshare_capture *capture = nullptr;
    check (frameshare_capture_announce (&capture));
    handle_.reset (capture);
  }

private:
  detail::Handle<frameshare_capture, frameshare_capture_end> handle_;
};

/// The state of a stream at one time. Pointers in the structs are the snapshot's.
class Snapshot {
public:
  Snapshot () = default;
  explicit Snapshot (frameshare_snapshot *snapshot) noexcept : handle_ (snapshot) {}

  explicit operator bool () const noexcept { return handle_ != nullptr; }
  frameshare_snapshot *get () const noexcept { return handle_.get (); }

  frameshare_stream_state stream () const
  {
    frameshare_stream_state stream = FRAMESHARE_STREAM_STATE_INIT;
    check (frameshare_snapshot_get_stream (get (), &stream));
    return stream;
  }

  std::vector<frameshare_reader_state> readers () const
  {
    std::vector<frameshare_reader_state> found;
    for (size_t index = 0; index < frameshare_snapshot_reader_count (get ()); index++) {
      frameshare_reader_state reader = FRAMESHARE_READER_STATE_INIT;
      check (frameshare_snapshot_get_reader (get (), index, &reader));
      found.push_back (reader);
    }
    return found;
  }

  std::vector<frameshare_incident> incidents () const
  {
    std::vector<frameshare_incident> found;
    for (size_t index = 0; index < frameshare_snapshot_incident_count (get ()); index++) {
      frameshare_incident incident = FRAMESHARE_INCIDENT_INIT;
      check (frameshare_snapshot_get_incident (get (), index, &incident));
      found.push_back (incident);
    }
    return found;
  }

private:
  detail::Handle<frameshare_snapshot, frameshare_snapshot_free> handle_;
};

/// An observer of one stream, which takes no part in it.
class Observer {
public:
  /// Snapshots of next() come in the interval; without one there are those of snapshot() only.
  explicit Observer (const std::string &stream, std::chrono::nanoseconds interval = {},
                     std::chrono::nanoseconds timeout = std::chrono::seconds (2))
  {
    frameshare_observer *observer = nullptr;
    const auto between = static_cast<uint64_t> (interval.count ());
    check (frameshare_observer_open (stream.c_str (), between, timeout.count (), &observer));
    handle_.reset (observer);
  }

  frameshare_observer *get () const noexcept { return handle_.get (); }

  Snapshot snapshot ()
  {
    frameshare_snapshot *snapshot = nullptr;
    check (frameshare_observer_snapshot (get (), &snapshot));
    return Snapshot (snapshot);
  }

  /// Returns the next snapshot of the interval; an empty one after the timeout.
  Snapshot next (std::chrono::nanoseconds timeout = FOREVER)
  {
    frameshare_snapshot *snapshot = nullptr;
    const frameshare_status status = frameshare_observer_next (get (), timeout.count (), &snapshot);
    if (status != FRAMESHARE_TIMEOUT)
      check (status);
    return Snapshot (snapshot);
  }

  void disconnect_reader (uint64_t reader) { check (frameshare_observer_disconnect_reader (get (), reader)); }

  int fd () const
  {
    int fd = -1;
    check (frameshare_observer_get_fd (get (), &fd));
    return fd;
  }

private:
  detail::Handle<frameshare_observer, frameshare_observer_close> handle_;
};

/// A stream that is shared.
struct StreamInfo {
  std::string name, path;
  uint32_t exporter_pid;
  std::string exporter_program;
};

/// Returns the named streams of this user and those in the folders of FRAMESHARE_PATH.
inline std::vector<StreamInfo>
streams ()
{
  frameshare_stream_list *list = nullptr;
  check (frameshare_list_streams (&list));
  const detail::Handle<frameshare_stream_list, frameshare_stream_list_free> owner (list);
  std::vector<StreamInfo> found;
  for (size_t index = 0; index < frameshare_stream_list_count (list); index++) {
    frameshare_stream_info info = FRAMESHARE_STREAM_INFO_INIT;
    check (frameshare_stream_list_get (list, index, &info));
    const char *program = info.exporter_program != nullptr ? info.exporter_program : "";
    found.push_back ({ info.name, info.path, info.exporter_pid, program });
  }
  return found;
}

} // namespace frameshare

#endif // FRAMESHARE_HPP
