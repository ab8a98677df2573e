/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * The contract of frameshare.h, checked by a program in C: contract [leak]
 *
 * With "leak" it only forgets a frame, which valgrind has to report.
 *
 * Exporters and readers are in this process; XDG_RUNTIME_DIR is an empty folder. Runs under valgrind, too.
 */

#define _DEFAULT_SOURCE
#include "check.h"

#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

enum { WIDTH = 64, HEIGHT = 48 };

/* Long enough for a loaded machine; a test that needs it has failed. */
static const int64_t LONG = INT64_C (60000000000);
static const char STREAM[] = "contract";

static frameshare_format
gray (void)
{
  frameshare_format format = FRAMESHARE_FORMAT_INIT;
  format.pixel_format = "GRAY8";
  format.width = WIDTH;
  format.height = HEIGHT;
  format.rate_numerator = 25;
  return format;
}

static frameshare_exporter *
create (void)
{
  frameshare_format format = gray ();
  frameshare_exporter *exporter;
  OK (frameshare_exporter_create (STREAM, &format, NULL, &exporter));
  return exporter;
}

static frameshare_reader *
open_once (frameshare_policy policy)
{
  frameshare_reader_config config = FRAMESHARE_READER_CONFIG_INIT;
  config.name = "contract-reader";
  config.policy = policy;
  config.reconnect = false;
  frameshare_reader *reader;
  OK (frameshare_reader_open (STREAM, &config, &reader));
  return reader;
}

/* Publishes a frame whose row y has the value + y. */
static uint64_t
publish (frameshare_exporter *exporter, unsigned value, const frameshare_publish_options *options)
{
  frameshare_new_frame *frame;
  uint64_t sequence = 0;
  OK (frameshare_exporter_acquire (exporter, -1, &frame));
  frameshare_plane plane = FRAMESHARE_PLANE_INIT;
  OK (frameshare_new_frame_get_plane (frame, 0, &plane));
  CHECK (plane.writable != NULL && plane.data == plane.writable && plane.device_pointer == 0);
  for (uint32_t y = 0; y < plane.height; y++)
    memset (plane.writable + (ptrdiff_t) y * plane.stride, (int) (value + y), plane.row_bytes);
  OK (frameshare_exporter_publish (exporter, frame, options, &sequence));
  return sequence;
}

static frameshare_frame *
next (frameshare_reader *reader)
{
  frameshare_frame *frame;
  OK (frameshare_reader_next (reader, LONG, &frame));
  CHECK (frame != NULL);
  return frame;
}

static frameshare_item
next_item (frameshare_reader *reader, frameshare_item_kind kind)
{
  frameshare_item item = FRAMESHARE_ITEM_INIT;
  OK (frameshare_reader_next_item (reader, LONG, &item));
  CHECK (item.kind == kind);
  return item;
}

static void
names_are_known (void)
{
  CHECK (strcmp (frameshare_last_error (), "") == 0);
  CHECK (strcmp (frameshare_version (), "0.1.0") == 0);
  CHECK (strcmp (frameshare_status_name (FRAMESHARE_OK), "ok") == 0);
  CHECK (strcmp (frameshare_status_name (FRAMESHARE_EXPORTER_LOST), "exporter lost") == 0);
  CHECK (strcmp (frameshare_status_name (FRAMESHARE_INTERNAL), "internal error") == 0);
  CHECK (strcmp (frameshare_status_name ((frameshare_status) 19), "unknown status") == 0);
}

static void
missing_pointers_are_refused (void)
{
  frameshare_reader *reader = NULL;
  frameshare_exporter *exporter = NULL;
  frameshare_frame *frame = NULL;
  frameshare_new_frame *new_frame = NULL;
  frameshare_item item = FRAMESHARE_ITEM_INIT;
  frameshare_plane plane = FRAMESHARE_PLANE_INIT;
  frameshare_format format = gray ();
  frameshare_frame_info info = FRAMESHARE_FRAME_INFO_INIT;
  frameshare_reader_stats reader_stats = FRAMESHARE_READER_STATS_INIT;
  frameshare_exporter_stats exporter_stats = FRAMESHARE_EXPORTER_STATS_INIT;
  frameshare_stream_info stream = FRAMESHARE_STREAM_INFO_INIT;
  const void *data;
  size_t size;
  int fd = 7;

  REFUSED ("reader is NULL", frameshare_reader_open (STREAM, NULL, NULL));
  REFUSED ("stream is NULL", frameshare_reader_open (NULL, NULL, &reader));
  REFUSED ("reader is NULL", frameshare_reader_next (NULL, 0, &frame));
  REFUSED ("frame is NULL", frameshare_reader_next (NULL, 0, NULL));
  REFUSED ("reader is NULL", frameshare_reader_next_item (NULL, 0, &item));
  REFUSED ("frameshare_item", frameshare_reader_next_item (NULL, 0, NULL));
  REFUSED ("reader is NULL", frameshare_reader_get_fd (NULL, &fd));
  CHECK (fd == -1);
  REFUSED ("reader is NULL", frameshare_reader_interrupt (NULL, true));
  REFUSED ("reader is NULL", frameshare_reader_get_stats (NULL, &reader_stats));
  REFUSED ("reader is NULL", frameshare_reader_request_key_unit (NULL));
  frameshare_reader_close (NULL);

  REFUSED ("frame is NULL", frameshare_frame_get_info (NULL, &info));
  REFUSED ("frame is NULL", frameshare_frame_get_format (NULL, &format));
  REFUSED ("frame is NULL", frameshare_frame_get_plane (NULL, 0, &plane));
  REFUSED ("frame is NULL", frameshare_frame_get_plane_on (NULL, 0, NULL, &plane));
  REFUSED ("frame is NULL", frameshare_frame_get_data (NULL, &data, &size));
  CHECK (data == NULL && size == 0);
  REFUSED ("frame is NULL", frameshare_frame_copy_plane (NULL, 0, &plane, sizeof plane, 1));
  REFUSED ("frame is NULL", frameshare_frame_wait_on (NULL, NULL));
  REFUSED ("frame is NULL", frameshare_frame_used_on_stream (NULL, NULL));
  REFUSED ("frame is NULL", frameshare_frame_done_on (NULL, NULL));
  REFUSED ("frame is NULL", frameshare_frame_release_on (NULL, NULL));
  frameshare_frame_release (NULL);

  REFUSED ("exporter is NULL", frameshare_exporter_create (STREAM, &format, NULL, NULL));
  REFUSED ("stream is NULL", frameshare_exporter_create (NULL, &format, NULL, &exporter));
  REFUSED ("frameshare_format", frameshare_exporter_create (STREAM, NULL, NULL, &exporter));
  REFUSED ("exporter is NULL", frameshare_exporter_set_format (NULL, &format));
  REFUSED ("exporter is NULL", frameshare_exporter_acquire (NULL, -1, &new_frame));
  REFUSED ("frame is NULL", frameshare_new_frame_get_plane (NULL, 0, &plane));
  REFUSED ("frame is NULL", frameshare_exporter_publish (NULL, NULL, NULL, NULL));
  REFUSED ("frame is NULL", frameshare_exporter_publish_on (NULL, NULL, NULL, NULL, NULL));
  REFUSED ("exporter is NULL", frameshare_exporter_send_event (NULL, FRAMESHARE_EVENT_APPLICATION, false, NULL, 0));
  REFUSED ("exporter is NULL", frameshare_exporter_end_stream (NULL));
  REFUSED ("exporter is NULL", frameshare_exporter_wait_for_reader (NULL, -1));
  REFUSED ("exporter is NULL", frameshare_exporter_drain (NULL, 0));
  REFUSED ("exporter is NULL", frameshare_exporter_interrupt (NULL, true));
  REFUSED ("exporter is NULL", frameshare_exporter_get_stats (NULL, &exporter_stats));
  frameshare_new_frame_discard (NULL);
  frameshare_exporter_close (NULL);

  frameshare_observer *observer;
  frameshare_snapshot *snapshot;
  frameshare_stream_state stream_state = FRAMESHARE_STREAM_STATE_INIT;
  frameshare_reader_state reader_state = FRAMESHARE_READER_STATE_INIT;
  frameshare_incident incident = FRAMESHARE_INCIDENT_INIT;
  REFUSED ("observer is NULL", frameshare_observer_open (STREAM, 0, 0, NULL));
  REFUSED ("stream is NULL", frameshare_observer_open (NULL, 0, 0, &observer));
  REFUSED ("observer is NULL", frameshare_observer_get_fd (NULL, &fd));
  REFUSED ("observer is NULL", frameshare_observer_snapshot (NULL, &snapshot));
  REFUSED ("observer is NULL", frameshare_observer_next (NULL, 0, &snapshot));
  REFUSED ("snapshot is NULL", frameshare_observer_next (NULL, 0, NULL));
  REFUSED ("observer is NULL", frameshare_observer_disconnect_reader (NULL, 1));
  REFUSED ("snapshot is NULL", frameshare_snapshot_get_stream (NULL, &stream_state));
  REFUSED ("snapshot is NULL", frameshare_snapshot_get_reader (NULL, 0, &reader_state));
  REFUSED ("snapshot is NULL", frameshare_snapshot_get_incident (NULL, 0, &incident));
  CHECK (observer == NULL && snapshot == NULL);
  CHECK (frameshare_snapshot_reader_count (NULL) == 0 && frameshare_snapshot_incident_count (NULL) == 0);
  frameshare_snapshot_free (NULL);
  frameshare_observer_close (NULL);
  REFUSED ("capture is NULL", frameshare_capture_announce (NULL));
  frameshare_capture_end (NULL);

  REFUSED ("list is NULL", frameshare_list_streams (NULL));
  REFUSED ("list is NULL", frameshare_stream_list_get (NULL, 0, &stream));
  CHECK (frameshare_stream_list_count (NULL) == 0);
  frameshare_stream_list_free (NULL);
}

/* A reader with one wrong field. */
#define REFUSED_READER(text, field, value) \
  do { \
    frameshare_reader_config wrong = FRAMESHARE_READER_CONFIG_INIT; \
    wrong.field = (value); \
    reader = (frameshare_reader *) &reader; \
    REFUSED (text, frameshare_reader_open (STREAM, &wrong, &reader)); \
    CHECK (reader == NULL); \
  } while (0)

#define REFUSED_FORMAT(text, field, value) \
  do { \
    frameshare_format wrong = gray (); \
    wrong.field = (value); \
    REFUSED (text, frameshare_exporter_create (STREAM, &wrong, NULL, &exporter)); \
    CHECK (exporter == NULL); \
  } while (0)

#define REFUSED_EXPORTER(text, field, value) \
  do { \
    frameshare_exporter_config wrong = FRAMESHARE_EXPORTER_CONFIG_INIT; \
    wrong.field = (value); \
    REFUSED (text, frameshare_exporter_create (STREAM, &format, &wrong, &exporter)); \
    CHECK (exporter == NULL); \
  } while (0)

static void
wrong_values_are_refused (void)
{
  frameshare_reader *reader;
  frameshare_exporter *exporter;
  frameshare_format format = gray ();

  REFUSED ("\"a b\"", frameshare_reader_open ("a b", NULL, &reader));
  REFUSED ("not UTF-8", frameshare_reader_open ("\xff", NULL, &reader));
  REFUSED ("exporter_uid", frameshare_reader_open ("@abstract", NULL, &reader));
  REFUSED_READER ("FRAMESHARE_READER_CONFIG_INIT", size, 0);
  REFUSED_READER ("FRAMESHARE_READER_CONFIG_INIT", size, sizeof wrong - 1);
  REFUSED_READER ("FRAMESHARE_READER_CONFIG_INIT", size, SIZE_MAX);
  REFUSED_READER ("policy is 2", policy, (frameshare_policy) 2);
  REFUSED_READER ("memory is 3", memory, (frameshare_memory) 3);
  REFUSED_READER ("max_held is 65", max_held, 65);
  REFUSED_READER ("max_queued is 65", max_queued, 65);
  REFUSED_READER ("spin is 101", spin, 101);
  REFUSED_READER ("fence_timeout", fence_timeout_ns, 0);
  REFUSED_READER ("exporter_uid is -2", exporter_uid, -2);
  REFUSED_READER ("not UTF-8", name, "\xff");

  REFUSED_FORMAT ("FRAMESHARE_FORMAT_INIT", size, 0);
  REFUSED_FORMAT ("pixel_format is NULL", pixel_format, NULL);
  REFUSED_FORMAT ("\"NV99\"", pixel_format, "NV99");
  REFUSED_FORMAT ("width is 0", width, 0);
  REFUSED_FORMAT ("height is 2147483648", height, UINT32_C (2147483648));
  REFUSED_FORMAT ("rate_denominator is 0", rate_denominator, 0);
  REFUSED_FORMAT ("pixel_aspect_numerator is 0", pixel_aspect_numerator, 0);
  REFUSED_FORMAT ("interlacing is 5", interlacing, (frameshare_interlacing) 5);
  REFUSED_FORMAT ("matrix is 7", color.matrix, (frameshare_color_matrix) 7);
  REFUSED_EXPORTER ("FRAMESHARE_EXPORTER_CONFIG_INIT", size, 1);
  REFUSED_EXPORTER ("max_slots is 3", max_slots, 3);
  REFUSED_EXPORTER ("memory is 2", memory, FRAMESHARE_MEMORY_CUDA_OR_HOST);
  REFUSED_EXPORTER ("lossless_readers is 3", lossless_readers, (frameshare_lossless_readers) 3);
  REFUSED_EXPORTER ("slow_readers is 3", slow_readers, (frameshare_slow_readers) 3);
  REFUSED_EXPORTER ("allowed_uids is NULL", allowed_uid_count, 1);
  REFUSED_EXPORTER ("socket_mode", socket_mode, 0666);
}

/* Structs of a program that was built with a later header. */
static void
later_structs_work_unless_their_fields_are_set (void)
{
  struct {
    frameshare_format format;
    uint64_t later;
  } new = { gray (), 0 };
  frameshare_exporter *exporter;
  new.format.size = sizeof new;
  OK (frameshare_exporter_create (STREAM, &new.format, NULL, &exporter));
  new.later = 1;
  REFUSED ("newer version", frameshare_exporter_set_format (exporter, &new.format));

  struct {
    frameshare_exporter_stats stats;
    uint64_t later;
  } filled = { FRAMESHARE_EXPORTER_STATS_INIT, 99 };
  filled.stats.size = sizeof filled;
  OK (frameshare_exporter_get_stats (exporter, &filled.stats));
  CHECK (filled.stats.size == sizeof filled && filled.later == 0 && filled.stats.max_slots == 512);
  frameshare_exporter_close (exporter);
}

static void
missing_stream_is_not_found (void)
{
  frameshare_reader_config config = FRAMESHARE_READER_CONFIG_INIT;
  config.connection_timeout_ns = 0;
  frameshare_reader *reader;
  RETURNS (FRAMESHARE_NOT_FOUND, frameshare_reader_open ("missing", &config, &reader));
  CHECK (reader == NULL && strstr (frameshare_last_error (), "missing") != NULL);
  config.lazy = true;
  OK (frameshare_reader_open ("missing", &config, &reader));
  frameshare_frame *frame;
  RETURNS (FRAMESHARE_TIMEOUT, frameshare_reader_next (reader, 0, &frame));
  frameshare_reader_close (reader);
}

static void
stream_has_one_exporter (void)
{
  frameshare_exporter *exporter = create (), *other;
  frameshare_format format = gray ();
  RETURNS (FRAMESHARE_IN_USE, frameshare_exporter_create (STREAM, &format, NULL, &other));
  CHECK (other == NULL);

  frameshare_stream_list *list;
  OK (frameshare_list_streams (&list));
  CHECK (frameshare_stream_list_count (list) == 1);
  frameshare_stream_info info = FRAMESHARE_STREAM_INFO_INIT;
  OK (frameshare_stream_list_get (list, 0, &info));
  CHECK (strcmp (info.name, STREAM) == 0 && strstr (info.path, "/frameshare/contract.sock") != NULL);
  CHECK (info.exporter_pid == (uint32_t) getpid () && info.exporter_program != NULL);
  REFUSED ("index is 1", frameshare_stream_list_get (list, 1, &info));
  frameshare_stream_list_free (list);

  /* A frame of another exporter. */
  OK (frameshare_exporter_create ("other", &format, NULL, &other));
  frameshare_new_frame *frame;
  OK (frameshare_exporter_acquire (other, -1, &frame));
  REFUSED ("another exporter", frameshare_exporter_publish (exporter, frame, NULL, NULL));
  frameshare_exporter_close (other);
  frameshare_exporter_close (exporter);
}

static void
frame_has_what_was_published (void)
{
  frameshare_exporter *exporter = create ();
  frameshare_reader *reader = open_once (FRAMESHARE_POLICY_LOSSLESS);
  frameshare_publish_options options = FRAMESHARE_PUBLISH_OPTIONS_INIT;
  options.pts_ns = 123456;
  options.duration_ns = 789;
  options.metadata = "label";
  options.metadata_size = 5;
  uint64_t sequence = publish (exporter, 10, &options);
  publish (exporter, 20, NULL);

  frameshare_frame *frame = next (reader);
  frameshare_frame_info info = FRAMESHARE_FRAME_INFO_INIT;
  OK (frameshare_frame_get_info (frame, &info));
  CHECK (info.sequence == sequence && info.session != 0 && info.lost_before == 0);
  CHECK (info.pts_ns == 123456 && info.duration_ns == 789 && info.published_ns != FRAMESHARE_NO_TIME);
  CHECK (info.memory == FRAMESHARE_MEMORY_HOST && !info.is_kept && info.byte_count >= WIDTH * HEIGHT);
  CHECK (info.metadata_size == 5 && memcmp (info.metadata, "label", 5) == 0);
  info.size = 8;
  REFUSED ("FRAMESHARE_FRAME_INFO_INIT", frameshare_frame_get_info (frame, &info));
  info.size = sizeof info;

  frameshare_format format = FRAMESHARE_FORMAT_INIT;
  OK (frameshare_frame_get_format (frame, &format));
  CHECK (strcmp (format.pixel_format, "GRAY8") == 0 && format.width == WIDTH && format.height == HEIGHT);
  CHECK (format.rate_numerator == 25 && format.rate_denominator == 1 && format.plane_count == 1);
  CHECK (format.color.range == FRAMESHARE_RANGE_FULL && format.interlacing == FRAMESHARE_INTERLACING_PROGRESSIVE);

  frameshare_plane plane = FRAMESHARE_PLANE_INIT;
  OK (frameshare_frame_get_plane (frame, 0, &plane));
  CHECK (plane.width == WIDTH && plane.height == HEIGHT && plane.row_bytes == WIDTH && plane.writable == NULL);
  CHECK (plane.data[0] == 10 && plane.data[(HEIGHT - 1) * plane.stride] == 10 + HEIGHT - 1);
  CHECK (plane.device_pointer == 0 && plane.tile_rows == 0);
  REFUSED ("no plane 1", frameshare_frame_get_plane (frame, 1, &plane));

  /* Streams are not looked at for host memory. */
  OK (frameshare_frame_get_plane_on (frame, 0, &plane, &plane));
  CHECK (plane.data[0] == 10);
  OK (frameshare_frame_wait_on (frame, &plane));
  OK (frameshare_frame_used_on_stream (frame, &plane));
  OK (frameshare_frame_done_on (frame, &plane));

  uint8_t rows[HEIGHT][2 * WIDTH];
  memset (rows, 0xee, sizeof rows);
  OK (frameshare_frame_copy_plane (frame, 0, rows, sizeof rows - WIDTH, sizeof rows[0]));
  for (unsigned y = 0; y < HEIGHT; y++)
    CHECK (rows[y][0] == 10 + y && rows[y][WIDTH - 1] == 10 + y && rows[y][WIDTH] == 0xee);
  REFUSED ("do not hold", frameshare_frame_copy_plane (frame, 0, rows, sizeof rows - WIDTH - 1, sizeof rows[0]));
  REFUSED ("do not hold", frameshare_frame_copy_plane (frame, 0, rows, sizeof rows, WIDTH - 1));
  REFUSED ("target is NULL", frameshare_frame_copy_plane (frame, 0, NULL, 0, WIDTH));

  const void *data;
  size_t byte_count;
  OK (frameshare_frame_get_data (frame, &data, &byte_count));
  CHECK (byte_count == info.byte_count && data == plane.data);

  /* Frames outlive their reader and their exporter. */
  frameshare_frame *second = next (reader);
  frameshare_reader_stats stats = FRAMESHARE_READER_STATS_INIT;
  OK (frameshare_reader_get_stats (reader, &stats));
  CHECK (stats.received == 2 && stats.lost == 0 && stats.held == 2 && stats.credit == 4);
  CHECK (stats.exporter_pid == (uint32_t) getpid () && stats.session == info.session);
  OK (frameshare_frame_release_on (frame, NULL));
  frameshare_reader_close (reader);
  frameshare_exporter_close (exporter);
  OK (frameshare_frame_get_plane (second, 0, &plane));
  CHECK (plane.data[0] == 20);
  OK (frameshare_frame_get_info (second, &info));
  CHECK (info.duration_ns == 40000000 && info.metadata == NULL);
  frameshare_frame_release (second);
}

static void
items_come_in_order (void)
{
  frameshare_exporter *exporter = create ();
  REFUSED ("kind is 0", frameshare_exporter_send_event (exporter, 0, false, "x", 1));
  REFUSED ("payload is NULL",
           frameshare_exporter_send_event (exporter, FRAMESHARE_EVENT_APPLICATION, false, NULL, 1));
  frameshare_reader *reader = open_once (FRAMESHARE_POLICY_LOSSLESS);
  frameshare_item item = next_item (reader, FRAMESHARE_ITEM_FORMAT);
  CHECK (strncmp (item.caps, "video/x-raw", 11) == 0 && strstr (item.caps, "GRAY8") != NULL && item.frame == NULL);

  publish (exporter, 1, NULL);
  OK (frameshare_exporter_send_event (exporter, FRAMESHARE_EVENT_APPLICATION + 5, true, "shutter", 7));
  publish (exporter, 2, NULL);
  OK (frameshare_exporter_end_stream (exporter));

  item = next_item (reader, FRAMESHARE_ITEM_FRAME);
  CHECK (item.caps == NULL && item.event_payload == NULL);
  frameshare_frame_release (item.frame);
  item = next_item (reader, FRAMESHARE_ITEM_EVENT);
  CHECK (item.event_kind == FRAMESHARE_EVENT_APPLICATION + 5 && item.event_size == 7 && item.event_is_sticky);
  CHECK (memcmp (item.event_payload, "shutter", 7) == 0 && item.frame == NULL);
  frameshare_frame_release (next_item (reader, FRAMESHARE_ITEM_FRAME).frame);
  next_item (reader, FRAMESHARE_ITEM_END_OF_STREAM);

  /* The stream goes on in another format; frames of the former one cannot be published. */
  frameshare_new_frame *former;
  OK (frameshare_exporter_acquire (exporter, -1, &former));
  frameshare_format format = gray ();
  format.pixel_format = "NV12";
  format.color.range = FRAMESHARE_RANGE_FULL;
  format.color.matrix = FRAMESHARE_MATRIX_BT709;
  format.color.transfer = FRAMESHARE_TRANSFER_SRGB;
  format.color.primaries = FRAMESHARE_PRIMARIES_BT709;
  OK (frameshare_exporter_set_format (exporter, &format));
  REFUSED ("set_format", frameshare_exporter_publish (exporter, former, NULL, NULL));
  publish (exporter, 3, NULL);
  OK (frameshare_exporter_end_stream (exporter));
  frameshare_frame *frame = next (reader);
  frameshare_format found = FRAMESHARE_FORMAT_INIT;
  OK (frameshare_frame_get_format (frame, &found));
  CHECK (strcmp (found.pixel_format, "NV12") == 0 && found.plane_count == 2);
  CHECK (memcmp (&found.color, &format.color, sizeof found.color) == 0);
  frameshare_frame_release (frame);
  RETURNS (FRAMESHARE_END_OF_STREAM, frameshare_reader_next (reader, LONG, &frame));
  CHECK (frame == NULL);

  OK (frameshare_exporter_drain (exporter, LONG));
  frameshare_exporter_close (exporter);
  RETURNS (FRAMESHARE_EXPORTER_STOPPED, frameshare_reader_next (reader, LONG, &frame));
  CHECK (strstr (frameshare_last_error (), "stopped") != NULL);
  frameshare_reader_close (reader);
}

static void
timeout_keeps_the_last_error (void)
{
  frameshare_exporter *exporter = create ();
  frameshare_reader *reader = open_once (FRAMESHARE_POLICY_LATEST);
  REFUSED ("frame is NULL", frameshare_frame_get_info (NULL, NULL));
  frameshare_frame *frame;
  RETURNS (FRAMESHARE_TIMEOUT, frameshare_reader_next (reader, 0, &frame));
  RETURNS (FRAMESHARE_TIMEOUT, frameshare_reader_next (reader, 1000000, &frame));
  CHECK (frame == NULL && strstr (frameshare_last_error (), "frame is NULL") != NULL);
  frameshare_reader_close (reader);
  frameshare_exporter_close (exporter);
}

static frameshare_status waited;

static void *
wait_for_frame (void *reader)
{
  frameshare_frame *frame;
  /* The main thread may be in a call at the moment. */
  while ((waited = frameshare_reader_next (reader, -1, &frame)) == FRAMESHARE_INVALID_ARGUMENT)
    usleep (1000);
  /* The message is this thread's. */
  CHECK (strcmp (frameshare_last_error (), "interrupted") == 0);
  return NULL;
}

static void *
read_statistics (void *reader)
{
  for (unsigned count = 0; count < 1000; count++) {
    frameshare_reader_stats stats = FRAMESHARE_READER_STATS_INIT;
    OK (frameshare_reader_get_stats (reader, &stats));
    CHECK (stats.received == 1);
  }
  return NULL;
}

static void
reader_is_used_by_one_thread_and_interrupted_by_others (void)
{
  frameshare_exporter *exporter = create ();
  frameshare_reader *reader = open_once (FRAMESHARE_POLICY_LATEST);
  publish (exporter, 1, NULL);
  frameshare_frame *held = next (reader);
  frameshare_reader_stats stats = FRAMESHARE_READER_STATS_INIT;
  pthread_t thread;
  CHECK (pthread_create (&thread, NULL, wait_for_frame, reader) == 0);
  unsigned waited_ms = 0;
  int fd;
  while (frameshare_reader_get_fd (reader, &fd) == FRAMESHARE_OK) {
    CHECK (waited_ms++ < 60000);
    usleep (1000);
  }
  REFUSED ("another thread", frameshare_reader_get_fd (reader, &fd));
  /* Statistics and requests are for any thread. */
  OK (frameshare_reader_request_key_unit (reader));
  OK (frameshare_reader_get_stats (reader, &stats));
  CHECK (stats.received == 1 && stats.held == 1 && stats.exporter_pid == (uint32_t) getpid ());
  pthread_t others[4];
  for (unsigned index = 0; index < 4; index++)
    CHECK (pthread_create (&others[index], NULL, read_statistics, reader) == 0);
  for (unsigned index = 0; index < 4; index++)
    CHECK (pthread_join (others[index], NULL) == 0);
  frameshare_frame_release (held);
  OK (frameshare_reader_interrupt (reader, true));
  CHECK (pthread_join (thread, NULL) == 0 && waited == FRAMESHARE_INTERRUPTED);
  CHECK (strstr (frameshare_last_error (), "another thread") != NULL);

  frameshare_frame *frame;
  RETURNS (FRAMESHARE_INTERRUPTED, frameshare_reader_next (reader, 0, &frame));
  OK (frameshare_reader_interrupt (reader, false));
  publish (exporter, 1, NULL);
  frameshare_frame_release (next (reader));
  frameshare_reader_close (reader);

  frameshare_exporter_close (exporter);

  exporter = create ();
  OK (frameshare_exporter_interrupt (exporter, true));
  RETURNS (FRAMESHARE_INTERRUPTED, frameshare_exporter_wait_for_reader (exporter, -1));
  OK (frameshare_exporter_interrupt (exporter, false));
  frameshare_exporter_close (exporter);
}

static bool has_read_all;

static void *
ask_from_another_thread (void *reader)
{
  while (!__atomic_load_n (&has_read_all, __ATOMIC_SEQ_CST)) {
    for (unsigned count = 0; count < 1000; count++) {
      frameshare_reader_stats stats = FRAMESHARE_READER_STATS_INIT;
      OK (frameshare_reader_get_stats (reader, &stats));
      CHECK (stats.credit == 4 && stats.held <= 1);
    }
    OK (frameshare_reader_request_key_unit (reader));
    OK (frameshare_reader_interrupt (reader, false));
  }
  return NULL;
}

static void
any_thread_leaves_the_reading_one_alone (void)
{
  frameshare_exporter *exporter = create ();
  frameshare_reader *reader = open_once (FRAMESHARE_POLICY_LATEST);
  next_item (reader, FRAMESHARE_ITEM_FORMAT);
  pthread_t thread;
  CHECK (pthread_create (&thread, NULL, ask_from_another_thread, reader) == 0);
  for (unsigned count = 0; count < 2000; count++) {
    frameshare_frame *frame;
    int fd;
    RETURNS (FRAMESHARE_TIMEOUT, frameshare_reader_next (reader, 0, &frame));
    OK (frameshare_reader_get_fd (reader, &fd));
    if (count % 10 == 0) {
      publish (exporter, count, NULL);
      frameshare_frame_release (next_item (reader, FRAMESHARE_ITEM_FRAME).frame);
    }
  }
  __atomic_store_n (&has_read_all, true, __ATOMIC_SEQ_CST);
  CHECK (pthread_join (thread, NULL) == 0);
  frameshare_reader_close (reader);
  frameshare_exporter_close (exporter);
}

static void
reader_that_holds_all_learns_of_it (void)
{
  static const char TEXT[] = "holds 2 frames and may hold no more";
  frameshare_exporter *exporter = create ();
  frameshare_reader_config config = FRAMESHARE_READER_CONFIG_INIT;
  config.policy = FRAMESHARE_POLICY_LOSSLESS;
  config.max_held = 2;
  frameshare_reader *reader;
  OK (frameshare_reader_open (STREAM, &config, &reader));
  publish (exporter, 1, NULL);
  publish (exporter, 2, NULL);
  frameshare_frame *held[2] = { next (reader), next (reader) }, *frame;
  frameshare_item item = FRAMESHARE_ITEM_INIT;
  RETURNS (FRAMESHARE_TIMEOUT, frameshare_reader_next (reader, 0, &frame));
  CHECK (frame == NULL && strstr (frameshare_last_error (), TEXT) != NULL);
  REFUSED ("frame is NULL", frameshare_frame_get_info (NULL, NULL));
  RETURNS (FRAMESHARE_TIMEOUT, frameshare_reader_next_item (reader, 1000000, &item));
  CHECK (strstr (frameshare_last_error (), TEXT) != NULL);
  REFUSED ("frame is NULL", frameshare_frame_get_info (NULL, NULL));
  RETURNS (FRAMESHARE_ALL_HELD, frameshare_reader_next (reader, -1, &frame));
  CHECK (frame == NULL && strstr (frameshare_last_error (), TEXT) != NULL);

  /* The reader goes on, and waits without a word while it may hold another frame. */
  frameshare_frame_release (held[0]);
  REFUSED ("frame is NULL", frameshare_frame_get_info (NULL, NULL));
  RETURNS (FRAMESHARE_TIMEOUT, frameshare_reader_next (reader, 0, &frame));
  CHECK (strstr (frameshare_last_error (), "frame is NULL") != NULL);
  publish (exporter, 3, NULL);
  frameshare_frame_release (next (reader));
  frameshare_frame_release (held[1]);
  frameshare_reader_close (reader);
  frameshare_exporter_close (exporter);
}

static bool
is_readable (int fd, int timeout_ms)
{
  struct pollfd poll_fd = { fd, POLLIN, 0 };
  return poll (&poll_fd, 1, timeout_ms) == 1;
}

/* Asks until there is nothing, and returns the last status. */
static frameshare_status
ask (frameshare_reader *reader, unsigned *frames)
{
  frameshare_frame *frame;
  frameshare_status status;
  while ((status = frameshare_reader_next (reader, 0, &frame)) == FRAMESHARE_OK) {
    frameshare_frame_release (frame);
    ++*frames;
  }
  return status;
}

/* Asks until the descriptor is not readable. It may be readable without a frame, but not again and again. */
static void
settle (frameshare_reader *reader, int fd, unsigned *frames)
{
  unsigned before = *frames;
  RETURNS (FRAMESHARE_TIMEOUT, ask (reader, frames));
  for (unsigned rounds = 0; is_readable (fd, 0); rounds++) {
    CHECK (rounds < 10);
    RETURNS (FRAMESHARE_TIMEOUT, ask (reader, frames));
  }
  CHECK (*frames == before);
}

static void
descriptor_stays_and_shows_frames (void)
{
  frameshare_exporter *exporter = create ();
  frameshare_reader_config config = FRAMESHARE_READER_CONFIG_INIT;
  frameshare_reader *reader;
  OK (frameshare_reader_open (STREAM, &config, &reader));
  unsigned frames = 0;
  int fd, again;
  OK (frameshare_reader_get_fd (reader, &fd));
  settle (reader, fd, &frames);
  for (unsigned number = 1; number <= 50; number++) {
    publish (exporter, number, NULL);
    while (frames < number) {
      CHECK (is_readable (fd, 60000));
      RETURNS (FRAMESHARE_TIMEOUT, ask (reader, &frames));
    }
    settle (reader, fd, &frames);
  }

  /* The same descriptor for the next exporter, while a frame of the first one is held. */
  publish (exporter, 51, NULL);
  frameshare_frame *held = next (reader);
  RETURNS (FRAMESHARE_TIMEOUT, ask (reader, &frames));
  frameshare_exporter_close (exporter);
  CHECK (is_readable (fd, 60000));
  exporter = create ();
  frameshare_item item = FRAMESHARE_ITEM_INIT;
  frameshare_status status;
  while ((status = frameshare_reader_next_item (reader, 0, &item)) == FRAMESHARE_TIMEOUT)
    CHECK (is_readable (fd, 60000));
  OK (status);
  CHECK (item.kind == FRAMESHARE_ITEM_RECONNECTED);
  /* A descriptor of the lost connection, which the held frame keeps open, reports at most once. */
  settle (reader, fd, &frames);
  frames = 0;
  publish (exporter, 1, NULL);
  while (frames == 0) {
    CHECK (is_readable (fd, 60000));
    RETURNS (FRAMESHARE_TIMEOUT, ask (reader, &frames));
  }
  OK (frameshare_reader_get_fd (reader, &again));
  CHECK (again == fd);
  frameshare_reader_stats stats = FRAMESHARE_READER_STATS_INIT;
  OK (frameshare_reader_get_stats (reader, &stats));
  CHECK (stats.reconnects == 1 && stats.received == 52);
  frameshare_frame_release (held);
  frameshare_reader_close (reader);
  frameshare_exporter_close (exporter);
}

static void
lossless_reader_ends_the_wait_of_the_exporter (void)
{
  frameshare_exporter *exporter = create ();
  frameshare_reader *reader = open_once (FRAMESHARE_POLICY_LOSSLESS);
  publish (exporter, 1, NULL);
  RETURNS (FRAMESHARE_TIMEOUT, frameshare_exporter_drain (exporter, 0));
  frameshare_frame_release (next (reader));
  OK (frameshare_exporter_drain (exporter, LONG));
  frameshare_exporter_stats stats = FRAMESHARE_EXPORTER_STATS_INIT;
  OK (frameshare_exporter_get_stats (exporter, &stats));
  CHECK (stats.published == 1 && stats.readers == 1 && stats.readers_total == 1 && stats.slots >= 1);
  CHECK (stats.slot_size >= WIDTH * HEIGHT && stats.free_slots <= stats.slots);
  frameshare_new_frame *unused;
  OK (frameshare_exporter_acquire (exporter, -1, &unused));
  frameshare_reader_close (reader);
  frameshare_exporter_close (exporter);
  /* An acquired frame outlives its exporter. */
  frameshare_new_frame_discard (unused);
  OK (frameshare_wait_for_gpu (0));
}

static int joined, left, refused;

static void
count (frameshare_log_level level, const char *message, void *data)
{
  CHECK (data == &joined);
  __atomic_fetch_add (&joined, level == FRAMESHARE_LOG_INFO && strstr (message, "contract-reader") != NULL
                                   && strstr (message, "joined") != NULL, __ATOMIC_SEQ_CST);
  __atomic_fetch_add (&left, strstr (message, "left: ") != NULL, __ATOMIC_SEQ_CST);
  __atomic_fetch_add (&refused, level == FRAMESHARE_LOG_WARNING && strstr (message, "refused: ") != NULL,
                      __ATOMIC_SEQ_CST);
}

static frameshare_status in_log;

static void
replace_log (frameshare_log_level level, const char *message, void *data)
{
  (void) level, (void) message;
  __atomic_store_n (&in_log, frameshare_set_log (NULL, NULL), __ATOMIC_SEQ_CST);
  __atomic_store_n ((bool *) data, true, __ATOMIC_SEQ_CST);
}

/* A log function that calls the library, against the contract, does not hang. */
static void
log_function_cannot_be_replaced_in_itself (void)
{
  bool is_called = false;
  OK (frameshare_set_log (replace_log, &is_called));
  frameshare_exporter *exporter = create ();
  frameshare_reader_close (open_once (FRAMESHARE_POLICY_LATEST));
  for (unsigned waited_ms = 0; !__atomic_load_n (&is_called, __ATOMIC_SEQ_CST); waited_ms++) {
    CHECK (waited_ms < 60000);
    usleep (1000);
  }
  OK (frameshare_set_log (NULL, NULL));
  CHECK (in_log == FRAMESHARE_INVALID_ARGUMENT);
  frameshare_exporter_close (exporter);
}

static void
log_names_readers (void)
{
  OK (frameshare_set_log (count, &joined));
  frameshare_exporter_config config = FRAMESHARE_EXPORTER_CONFIG_INIT;
  config.lossless_readers = FRAMESHARE_LOSSLESS_READERS_NONE;
  frameshare_format format = gray ();
  frameshare_exporter *exporter;
  OK (frameshare_exporter_create (STREAM, &format, &config, &exporter));
  frameshare_reader *reader = open_once (FRAMESHARE_POLICY_LATEST), *lossless;
  frameshare_reader_config wrong = FRAMESHARE_READER_CONFIG_INIT;
  wrong.policy = FRAMESHARE_POLICY_LOSSLESS;
  RETURNS (FRAMESHARE_REFUSED, frameshare_reader_open (STREAM, &wrong, &lossless));
  frameshare_reader_close (reader);
  unsigned waited_ms = 0;
  while (__atomic_load_n (&joined, __ATOMIC_SEQ_CST) != 1 || __atomic_load_n (&left, __ATOMIC_SEQ_CST) != 1
         || __atomic_load_n (&refused, __ATOMIC_SEQ_CST) != 1) {
    CHECK (waited_ms++ < 60000);
    usleep (1000);
  }
  OK (frameshare_set_log (NULL, NULL));
  frameshare_reader_close (open_once (FRAMESHARE_POLICY_LATEST));
  frameshare_exporter_close (exporter);
  CHECK (joined == 1 && left == 1);
}

static void
observer_sees_stream_and_readers (void)
{
  frameshare_observer *observer;
  RETURNS (FRAMESHARE_NOT_FOUND, frameshare_observer_open (STREAM, 0, LONG, &observer));
  CHECK (observer == NULL);

  frameshare_exporter *exporter = create ();
  frameshare_reader *reader = open_once (FRAMESHARE_POLICY_LOSSLESS);
  publish (exporter, 1, NULL);
  frameshare_frame *frame = next (reader);
  OK (frameshare_observer_open (STREAM, 0, LONG, &observer));
  int fd;
  OK (frameshare_observer_get_fd (observer, &fd));
  CHECK (!is_readable (fd, 0));
  frameshare_snapshot *snapshot;
  OK (frameshare_observer_snapshot (observer, &snapshot));
  frameshare_stream_state stream = FRAMESHARE_STREAM_STATE_INIT;
  OK (frameshare_snapshot_get_stream (snapshot, &stream));
  CHECK (stream.exporter_pid == (uint32_t) getpid () && stream.exporter_uid == geteuid ());
  CHECK (stream.published == 1 && stream.last_published_ns <= stream.time_ns && stream.readers_total == 1);
  CHECK (stream.started_ns > 0 && stream.slots > stream.free_slots && stream.copies == 0 && !stream.has_ended);
  CHECK (strstr (stream.caps, "GRAY8") != NULL && strcmp (stream.memory, "host") == 0);
  CHECK (stream.memory_why[0] != 0 && stream.exporter_program[0] != 0);
  CHECK (frameshare_snapshot_reader_count (snapshot) == 1 && frameshare_snapshot_incident_count (snapshot) == 0);
  frameshare_reader_state state = FRAMESHARE_READER_STATE_INIT;
  OK (frameshare_snapshot_get_reader (snapshot, 0, &state));
  CHECK (strcmp (state.name, "contract-reader") == 0 && state.policy == FRAMESHARE_POLICY_LOSSLESS);
  CHECK (state.pid == (uint32_t) getpid () && state.held == 1 && state.sent == 1 && state.lost == 0);
  CHECK (state.taken == 1 && state.age_sum_ns > 0 && state.age_sum_ns <= stream.time_ns);
  CHECK (strcmp (state.memory, "host") == 0 && strcmp (state.fence, "none") == 0 && state.fence_why[0] != 0);
  REFUSED ("index is 1", frameshare_snapshot_get_reader (snapshot, 1, &state));

  /* A disconnected reader is an incident, and the snapshot before stays as it is. */
  OK (frameshare_observer_disconnect_reader (observer, state.id));
  RETURNS (FRAMESHARE_NOT_FOUND, frameshare_observer_disconnect_reader (observer, state.id));
  frameshare_snapshot *later;
  OK (frameshare_observer_snapshot (observer, &later));
  CHECK (frameshare_snapshot_reader_count (later) == 0 && frameshare_snapshot_incident_count (later) == 1);
  frameshare_incident incident = FRAMESHARE_INCIDENT_INIT;
  OK (frameshare_snapshot_get_incident (later, 0, &incident));
  CHECK (incident.reader == state.id && strstr (incident.text, "disconnected by process") != NULL);
  frameshare_snapshot_free (later);
  frameshare_observer_close (observer);
  CHECK (strcmp (state.name, "contract-reader") == 0);
  frameshare_snapshot_free (snapshot);

  /* Updates, until the exporter stops. */
  OK (frameshare_observer_open (STREAM, UINT64_C (100000000), LONG, &observer));
  RETURNS (FRAMESHARE_TIMEOUT, frameshare_observer_next (observer, 0, &snapshot));
  for (unsigned count = 0; count < 2; count++) {
    OK (frameshare_observer_next (observer, LONG, &snapshot));
    frameshare_snapshot_free (snapshot);
  }
  frameshare_frame_release (frame);
  frameshare_reader_close (reader);
  frameshare_exporter_close (exporter);
  frameshare_status status;
  while ((status = frameshare_observer_next (observer, LONG, &snapshot)) == FRAMESHARE_OK)
    frameshare_snapshot_free (snapshot);
  CHECK (status == FRAMESHARE_EXPORTER_STOPPED && snapshot == NULL);
  frameshare_observer_close (observer);
}

static void
captures_are_announced_and_ended (void)
{
  frameshare_capture *one, *other;
  OK (frameshare_capture_announce (&one));
  OK (frameshare_capture_announce (&other));
  CHECK (one != other);
  frameshare_capture_end (one);
  frameshare_capture_end (other);
}

static void
forget_a_frame (void)
{
  frameshare_exporter *exporter = create ();
  frameshare_reader *reader = open_once (FRAMESHARE_POLICY_LOSSLESS);
  publish (exporter, 1, NULL);
  next (reader);
  frameshare_reader_close (reader);
  frameshare_exporter_close (exporter);
}

/* A frame that had no room in time is still the caller's; a wait without readers ends, too. */
static void
waits_of_the_exporter_end_in_time (void)
{
  frameshare_exporter *exporter = create ();
  RETURNS (FRAMESHARE_TIMEOUT, frameshare_exporter_wait_for_reader (exporter, 0));
  frameshare_reader *reader = open_once (FRAMESHARE_POLICY_LOSSLESS);
  OK (frameshare_exporter_wait_for_reader (exporter, LONG));
  frameshare_publish_options options = FRAMESHARE_PUBLISH_OPTIONS_INIT;
  options.timeout_ns = 10000000; /* 10 ms */
  frameshare_new_frame *frame;
  frameshare_status status;
  uint64_t published = 0;
  do {
    OK (frameshare_exporter_acquire (exporter, 0, &frame));
    status = frameshare_exporter_publish (exporter, frame, &options, &published);
  } while (status == FRAMESHARE_OK && published < 64);
  CHECK (status == FRAMESHARE_TIMEOUT && published == 4);
  RETURNS (FRAMESHARE_TIMEOUT, frameshare_exporter_publish (exporter, frame, &options, NULL));
  frameshare_frame_release (next (reader));
  options.timeout_ns = -1;
  OK (frameshare_exporter_publish (exporter, frame, &options, &published));
  CHECK (published == 5);

  /* All slots are in use. */
  enum { SLOTS = 512 };
  frameshare_new_frame *held[SLOTS];
  unsigned count = 0;
  while (count < SLOTS && frameshare_exporter_acquire (exporter, 0, &held[count]) == FRAMESHARE_OK)
    count++;
  CHECK (count > 0 && count < SLOTS);
  RETURNS (FRAMESHARE_NO_RESOURCES, frameshare_exporter_acquire (exporter, 10000000, &frame));
  CHECK (frame == NULL);
  while (count > 0)
    frameshare_new_frame_discard (held[--count]);
  OK (frameshare_exporter_acquire (exporter, 0, &frame));
  frameshare_new_frame_discard (frame);
  frameshare_reader_close (reader);
  frameshare_exporter_close (exporter);
}

int
main (int argc, char **argv)
{
  if (argc == 2 && strcmp (argv[1], "leak") == 0) {
    forget_a_frame ();
    return 0;
  }
  names_are_known ();
  missing_pointers_are_refused ();
  wrong_values_are_refused ();
  later_structs_work_unless_their_fields_are_set ();
  missing_stream_is_not_found ();
  stream_has_one_exporter ();
  frame_has_what_was_published ();
  items_come_in_order ();
  timeout_keeps_the_last_error ();
  reader_is_used_by_one_thread_and_interrupted_by_others ();
  any_thread_leaves_the_reading_one_alone ();
  reader_that_holds_all_learns_of_it ();
  descriptor_stays_and_shows_frames ();
  lossless_reader_ends_the_wait_of_the_exporter ();
  log_function_cannot_be_replaced_in_itself ();
  log_names_readers ();
  observer_sees_stream_and_readers ();
  captures_are_announced_and_ended ();
  waits_of_the_exporter_end_in_time ();
  puts ("contract kept");
  return 0;
}
