// SPDX-License-Identifier: MIT OR Apache-2.0

// The types of frameshare.hpp: contract STREAM
//
// Exporter and readers are in this process.

#include "check.h"

#include <frameshare.hpp>
#include <type_traits>
#include <unistd.h>

using namespace std::chrono_literals;

template <typename T>
constexpr bool is_owner = !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T>
                          && std::is_nothrow_move_constructible_v<T> && std::is_nothrow_move_assignable_v<T>;
static_assert (is_owner<frameshare::Reader> && is_owner<frameshare::Frame>);
static_assert (is_owner<frameshare::Exporter> && is_owner<frameshare::NewFrame>);
static_assert (is_owner<frameshare::Observer> && is_owner<frameshare::Snapshot> && is_owner<frameshare::Capture>);

static uint64_t
publish (frameshare::Exporter &exporter, uint8_t value)
{
  frameshare::NewFrame frame = exporter.acquire ();
  frameshare_plane plane = frame.plane (0);
  memset (plane.writable, value, static_cast<size_t> (plane.stride) * plane.height);
  return exporter.publish (std::move (frame));
}

int
main (int argc, char **argv)
{
  CHECK (argc == 2);
  frameshare::Format format ("GRAY8", 64, 48);
  frameshare::Exporter exporter (argv[1], format);
  frameshare::ReaderConfig config;
  config.policy = FRAMESHARE_POLICY_LOSSLESS;
  config.reconnect = false;
  frameshare::Reader reader (argv[1], config);

  CHECK (!reader.next (0ns) && !reader.next (1ms) && !reader.has_ended ());
  frameshare::Observer observer (argv[1], 100ms);
  const frameshare::Snapshot snapshot = observer.snapshot ();
  CHECK (snapshot.stream ().exporter_uid == geteuid () && snapshot.incidents ().empty ());
  CHECK (snapshot.readers ().size () == 1 && snapshot.readers ()[0].policy == FRAMESHARE_POLICY_LOSSLESS);
  CHECK (observer.next () && observer.fd () >= 0);
  const frameshare::Capture capture;
  reader.request_key_unit ();
  publish (exporter, 1);
  publish (exporter, 2);
  exporter.end_stream ();
  frameshare::Frame first = reader.next ();
  CHECK (first && first.info ().sequence == 1 && first.format ().width == 64 && first.plane (0).data[0] == 1);
  first = reader.next (); // releases the one before
  CHECK (first.plane (0).data[0] == 2 && reader.stats ().held == 1);
  uint8_t rows[48][64];
  first.copy_plane (0, rows, sizeof rows, sizeof rows[0]);
  CHECK (rows[47][63] == 2);
  first.release ();
  CHECK (!first && reader.stats ().held == 0);
  CHECK (!reader.next () && reader.has_ended () && !reader.next (1ms) && reader.has_ended ());

  exporter.send_event (FRAMESHARE_EVENT_APPLICATION, false, "go", 2);
  publish (exporter, 3);
  std::optional<frameshare::Item> item = reader.next_item ();
  CHECK (item && item->kind == FRAMESHARE_ITEM_EVENT && item->event_payload.size () == 2 && !item->event_is_sticky);
  item = reader.next_item ();
  CHECK (item && item->kind == FRAMESHARE_ITEM_FRAME && item->frame.info ().sequence == 3);
  item.reset ();
  CHECK (!reader.next_item (0ns) && reader.fd () >= 0);
  CHECK (exporter.drain (60s) && exporter.stats ().published == 3);

  try {
    frameshare::Exporter other (argv[1], format);
    CHECK (false);
  } catch (const frameshare::Error &error) {
    CHECK (error.status () == FRAMESHARE_IN_USE && strstr (error.what (), argv[1]) != nullptr);
  }
  for (const frameshare::StreamInfo &stream : frameshare::streams ())
    CHECK (!stream.name.empty ());
  reader.interrupt ();
  try {
    reader.next ();
    CHECK (false);
  } catch (const frameshare::Error &error) {
    CHECK (error.status () == FRAMESHARE_INTERRUPTED);
  }
  puts ("contract kept");
}
