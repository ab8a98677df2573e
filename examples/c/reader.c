/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * Reads a stream of raw video and prints statistics of its frames:
 *
 *   reader STREAM [latest|lossless [sums]]      "sums" prints number and checksum of each frame
 *
 * It ends with the stream. The exit status is 3 if the exporter crashed or was killed.
 */

#define _POSIX_C_SOURCE 200809L
#include "checksum.h"

#include <frameshare.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
  uint64_t frames, lost;
  /* Age: from the publication to here, in ns. */
  uint64_t age_least, age_most, age_sum;
  uint64_t first, last;
  double brightness;
} statistics;

static uint64_t
now (void)
{
  struct timespec time;
  clock_gettime (CLOCK_MONOTONIC, &time);
  return (uint64_t) time.tv_sec * 1000000000u + (uint64_t) time.tv_nsec;
}

static int
failed (const char *what, frameshare_status status)
{
  fprintf (stderr, "reader: %s: %s: %s\n", what, frameshare_status_name (status), frameshare_last_error ());
  return status == FRAMESHARE_EXPORTER_LOST ? 3 : EXIT_FAILURE;
}

/* Reads the image in place. */
static frameshare_status
look (const frameshare_frame *frame, bool sums, statistics *all)
{
  frameshare_frame_info info = FRAMESHARE_FRAME_INFO_INIT;
  frameshare_format format = FRAMESHARE_FORMAT_INIT;
  frameshare_status status = frameshare_frame_get_info (frame, &info);
  if (status == FRAMESHARE_OK)
    status = frameshare_frame_get_format (frame, &format);
  if (status != FRAMESHARE_OK)
    return status;

  uint64_t seen = now (), age = seen - info.published_ns, sum = CHECKSUM_INIT, total = 0, bytes = 0;
  for (uint32_t index = 0; index < (sums ? format.plane_count : 1); index++) {
    frameshare_plane plane = FRAMESHARE_PLANE_INIT;
    status = frameshare_frame_get_plane (frame, index, &plane);
    if (status != FRAMESHARE_OK)
      return status;
    for (uint32_t y = 0; y < plane.height; y++) {
      const uint8_t *row = plane.data + (ptrdiff_t) y * plane.stride;
      if (sums)
        sum = checksum_row (sum, row, plane.row_bytes);
      for (size_t x = 0; index == 0 && x < plane.row_bytes; x++)
        total += row[x];
    }
    if (index == 0)
      bytes = plane.height * plane.row_bytes;
  }
  if (sums)
    printf ("frame %" PRIu64 " sum %016" PRIx64 "\n", info.sequence, sum);
  if (all->frames == 0)
    printf ("%s %ux%u, %u planes\n", format.pixel_format, format.width, format.height, format.plane_count);

  all->first = all->frames == 0 ? seen : all->first;
  all->age_least = all->frames == 0 || age < all->age_least ? age : all->age_least;
  all->age_most = age > all->age_most ? age : all->age_most;
  all->age_sum += age;
  all->last = seen;
  all->frames++;
  all->lost += info.lost_before;
  all->brightness += bytes == 0 ? 0 : (double) total / (double) bytes;
  return FRAMESHARE_OK;
}

static void
report (const statistics *all)
{
  double frames = (double) all->frames, seconds = (double) (all->last - all->first) / 1e9;
  printf ("%" PRIu64 " frames, %" PRIu64 " lost\n", all->frames, all->lost);
  if (all->frames == 0)
    return;
  printf ("rate %.1f a second\n", seconds > 0 ? (frames - 1) / seconds : 0);
  printf ("age %.3f ms mean, %.3f to %.3f ms\n", (double) all->age_sum / frames / 1e6, (double) all->age_least / 1e6,
          (double) all->age_most / 1e6);
  printf ("brightness %.1f mean\n", all->brightness / frames);
}

int
main (int argc, char **argv)
{
  if (argc < 2 || argc > 4) {
    fprintf (stderr, "usage: reader STREAM [latest|lossless [sums]]\n");
    return 2;
  }
  bool sums = argc > 3 && strcmp (argv[3], "sums") == 0;
  frameshare_reader_config config = FRAMESHARE_READER_CONFIG_INIT;
  config.reconnect = false;
  if (argc > 2 && strcmp (argv[2], "lossless") == 0)
    config.policy = FRAMESHARE_POLICY_LOSSLESS;

  frameshare_reader *reader;
  frameshare_status status = frameshare_reader_open (argv[1], &config, &reader);
  if (status != FRAMESHARE_OK)
    return failed (argv[1], status);

  statistics all = { 0 };
  frameshare_frame *frame;
  while ((status = frameshare_reader_next (reader, -1, &frame)) == FRAMESHARE_OK) {
    status = look (frame, sums, &all);
    frameshare_frame_release (frame);
    if (status != FRAMESHARE_OK)
      break;
  }
  report (&all);
  int result = status == FRAMESHARE_END_OF_STREAM ? EXIT_SUCCESS : failed (argv[1], status);
  frameshare_reader_close (reader);
  return result;
}
