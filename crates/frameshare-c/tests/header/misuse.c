/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* The frame of the program that misuse.rs makes: valid objects, and checks of each call. */

#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <stdint.h>

/* VALUES */

static frameshare_exporter *exporter;
static frameshare_reader *reader;
static frameshare_frame *frame;
static frameshare_new_frame *new_frame;
static frameshare_observer *observer;
static frameshare_snapshot *snapshot;
static frameshare_stream_list *list;
static frameshare_capture *capture;

static uint64_t aligned[64], published;
static void *out[16];
static char buffer[65536], long_text[1 << 20];

/* Initializes all structs. */
static void
reset (void)
{
/* RESETS */
  frameshare_format_value.value.pixel_format = "GRAY8";
  frameshare_format_value.value.width = 64;
  frameshare_format_value.value.height = 48;
  frameshare_publish_options_value.value.timeout_ns = 0;
  frameshare_publish_options_value.value.metadata = "text";
  frameshare_publish_options_value.value.metadata_size = 4;
  static const uint32_t ids[1] = { 1 };
  frameshare_exporter_config_value.value.allowed_uids = ids;
  frameshare_exporter_config_value.value.allowed_gids = ids;
}

static frameshare_new_frame *
a_new_frame (void)
{
  frameshare_new_frame *fresh;
  OK (frameshare_exporter_acquire (exporter, 0, &fresh));
  return fresh;
}

static frameshare_frame *
a_frame (void)
{
  frameshare_frame *fresh;
  OK (frameshare_exporter_publish (exporter, a_new_frame (), NULL, NULL));
  published++;
  OK (frameshare_reader_next (reader, INT64_C (60000000000), &fresh));
  return fresh;
}

/* Runs before a call, so that its arguments and its message are its own. */
static void
begin (const char *text)
{
  memset (out, 0, sizeof out);
  reset ();
  OK (frameshare_reader_interrupt (reader, false));
  OK (frameshare_exporter_interrupt (exporter, false));
  RETURNS (FRAMESHARE_INVALID_ARGUMENT, frameshare_reader_interrupt (NULL, false));
  CHECK (strcmp (frameshare_last_error (), "reader is NULL") == 0);
  if (getenv ("FRAMESHARE_MISUSE") != NULL)
    fprintf (stderr, "%s\n", text);
}

static void
judge (const char *text, frameshare_status status, bool must_refuse, bool must_accept)
{
  const char *message = frameshare_last_error ();
  bool is_failure = status != FRAMESHARE_OK && status != FRAMESHARE_TIMEOUT && status != FRAMESHARE_END_OF_STREAM;
  if ((must_refuse && status != FRAMESHARE_INVALID_ARGUMENT)
      || (must_accept && status == FRAMESHARE_INVALID_ARGUMENT) || status == FRAMESHARE_INTERNAL
      || (is_failure && message[0] == 0) || strlen (message) > 4096) {
    fprintf (stderr, "%s: %s: %.4096s\n", text, frameshare_status_name (status), message);
    exit (1);
  }
  if (status == FRAMESHARE_OK && strncmp (text, "frameshare_exporter_publish", 27) == 0)
    published++;
}

/* What a call has made is closed again. */
static void
clean (const char *text)
{
  if (out[0] == NULL)
    return;
  else if (strncmp (text, "frameshare_reader_open", 22) == 0)
    frameshare_reader_close (out[0]);
  else if (strncmp (text, "frameshare_exporter_create", 26) == 0)
    frameshare_exporter_close (out[0]);
  else if (strncmp (text, "frameshare_reader_next (", 24) == 0)
    frameshare_frame_release (out[0]);
  else if (strncmp (text, "frameshare_exporter_acquire", 27) == 0)
    frameshare_new_frame_discard (out[0]);
  else if (strncmp (text, "frameshare_observer_open", 24) == 0)
    frameshare_observer_close (out[0]);
  else if (strncmp (text, "frameshare_observer_snapshot", 28) == 0)
    frameshare_snapshot_free (out[0]);
  else if (strncmp (text, "frameshare_list_streams", 23) == 0)
    frameshare_stream_list_free (out[0]);
  else if (strncmp (text, "frameshare_capture_announce", 27) == 0)
    frameshare_capture_end (out[0]);
}

static unsigned calls;

#define CALL(text, call) \
  do { \
    begin (text); \
    (void) (call); \
    calls++; \
  } while (0)
#define JUDGED(text, call, must_refuse, must_accept) \
  do { \
    begin (text); \
    judge (text, (call), must_refuse, must_accept); \
    clean (text); \
    calls++; \
  } while (0)
#define MUST_ACCEPT(text, call) JUDGED (text, call, false, true)
#define MUST_REFUSE(text, call) JUDGED (text, call, true, false)
#define MUST_SURVIVE(text, call) JUDGED (text, call, false, false)

static void
call_all (void)
{
/* CALLS */
}

int
main (void)
{
  memset (long_text, 'a', sizeof long_text - 1);
  reset ();
  OK (frameshare_exporter_create ("valid", &frameshare_format_value.value, NULL, &exporter));
  OK (frameshare_reader_open ("valid", NULL, &reader));
  new_frame = a_new_frame ();
  frame = a_frame ();
  OK (frameshare_observer_open ("valid", 0, INT64_C (60000000000), &observer));
  OK (frameshare_observer_snapshot (observer, &snapshot));
  OK (frameshare_list_streams (&list));
  OK (frameshare_capture_announce (&capture));
  for (int frames = 0; frames < 100; frames++)
    frameshare_frame_release (a_frame ());
  call_all ();

  /* No refused call has published a frame, and all objects work as before. */
  frameshare_exporter_stats stats = FRAMESHARE_EXPORTER_STATS_INIT;
  OK (frameshare_exporter_get_stats (exporter, &stats));
  CHECK (stats.published == published);
  OK (frameshare_reader_interrupt (reader, false));
  OK (frameshare_exporter_interrupt (exporter, false));
  reset ();
  OK (frameshare_exporter_set_format (exporter, &frameshare_format_value.value));
  frameshare_frame_release (a_frame ());
  frameshare_capture_end (capture);
  frameshare_stream_list_free (list);
  frameshare_snapshot_free (snapshot);
  frameshare_observer_close (observer);
  frameshare_frame_release (frame);
  frameshare_new_frame_discard (new_frame);
  frameshare_reader_close (reader);
  frameshare_exporter_close (exporter);
  printf ("%u calls\n", calls);
  return 0;
}
