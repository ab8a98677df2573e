/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * Exports a moving gradient in NV12:
 *
 *   exporter STREAM [FRAMES [RATE]]      default: 90 frames, 30 a second; RATE 0 is as fast as it goes
 *
 * Waits for the first reader. Prints number and checksum of each frame.
 */

#define _POSIX_C_SOURCE 200809L
#include "checksum.h"

#include <frameshare.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { WIDTH = 640, HEIGHT = 360 };

static int
failed (const char *what)
{
  fprintf (stderr, "exporter: %s: %s\n", what, frameshare_last_error ());
  return EXIT_FAILURE;
}

/* Writes an image in place: only the bytes of the rows, which may be followed by padding. */
static uint64_t
paint (const frameshare_new_frame *frame, unsigned number)
{
  uint64_t sum = CHECKSUM_INIT;
  for (uint32_t index = 0; index < 2; index++) {
    frameshare_plane plane = FRAMESHARE_PLANE_INIT;
    if (frameshare_new_frame_get_plane (frame, index, &plane) != FRAMESHARE_OK)
      exit (failed ("plane"));
    for (uint32_t y = 0; y < plane.height; y++) {
      uint8_t *row = plane.writable + (ptrdiff_t) y * plane.stride;
      for (size_t x = 0; x < plane.row_bytes; x++)
        row[x] = index == 0 ? (uint8_t) (x + y + 3 * number) : 128;
      sum = checksum_row (sum, row, plane.row_bytes);
    }
  }
  return sum;
}

static int
run (frameshare_exporter *exporter, unsigned frames, unsigned rate)
{
  if (frameshare_exporter_wait_for_reader (exporter, -1) != FRAMESHARE_OK)
    return failed ("wait for a reader");
  for (unsigned number = 1; number <= frames; number++) {
    frameshare_new_frame *frame;
    uint64_t sequence;
    if (frameshare_exporter_acquire (exporter, -1, &frame) != FRAMESHARE_OK)
      return failed ("acquire");
    uint64_t sum = paint (frame, number);
    if (frameshare_exporter_publish (exporter, frame, NULL, &sequence) != FRAMESHARE_OK)
      return failed ("publish");
    printf ("frame %" PRIu64 " sum %016" PRIx64 "\n", sequence, sum);
    fflush (stdout);
    if (rate > 0) {
      struct timespec pause = { rate == 1, rate == 1 ? 0 : 1000000000 / rate };
      nanosleep (&pause, NULL);
    }
  }
  if (frameshare_exporter_end_stream (exporter) != FRAMESHARE_OK)
    return failed ("end of stream");
  if (frameshare_exporter_drain (exporter, INT64_C (30000000000)) != FRAMESHARE_OK)
    return failed ("lossless readers");
  return EXIT_SUCCESS;
}

int
main (int argc, char **argv)
{
  if (argc < 2 || argc > 4) {
    fprintf (stderr, "usage: exporter STREAM [FRAMES [RATE]]\n");
    return 2;
  }
  unsigned frames = argc > 2 ? (unsigned) strtoul (argv[2], NULL, 10) : 90;
  unsigned rate = argc > 3 ? (unsigned) strtoul (argv[3], NULL, 10) : 30;

  frameshare_format format = FRAMESHARE_FORMAT_INIT;
  format.pixel_format = "NV12";
  format.width = WIDTH;
  format.height = HEIGHT;
  format.rate_numerator = rate;
  frameshare_exporter *exporter;
  if (frameshare_exporter_create (argv[1], &format, NULL, &exporter) != FRAMESHARE_OK)
    return failed (argv[1]);
  int status = run (exporter, frames, rate);
  frameshare_exporter_close (exporter);
  return status;
}
