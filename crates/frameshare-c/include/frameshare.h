/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/**
 * @file
 * libframeshare: video frames of other processes, without a copy.
 *
 * An exporter has the frames of a stream in memory that other processes import. Readers in any
 * number of processes read each frame in place until they release it. The guide is docs/c.md.
 *
 * Statuses. A function that can fail returns a frameshare_status. Each object that it returns comes
 * through an out-parameter, which is NULL after a failure. frameshare_last_error() has the message.
 *
 * Structs. Each struct begins with its size, which the macro of its name with _INIT sets together
 * with the defaults: frameshare_reader_config config = FRAMESHARE_READER_CONFIG_INIT. Later versions
 * of the library add fields at the end, and accept structs of programs that were built earlier.
 *
 * Times are in nanoseconds of CLOCK_MONOTONIC. A timeout below 0 is without limit; a timeout of 0
 * does not wait.
 *
 * Threads. "Any" functions may be called by several threads at once. A "one at a time" function
 * returns FRAMESHARE_INVALID_ARGUMENT while another thread is in such a function of the same object.
 * No object may be used while or after it is closed or released: this is not detected, and the behavior
 * is undefined. Threads of the library have the
 * signal mask of the thread that opens the reader or exporter.
 *
 * Processes. Objects belong to the process that made them: a child of fork(2) must not use them
 * before execve(2).
 *
 * CUDA streams are passed as void *: a CUstream or a cudaStream_t of any context. NULL is the NULL
 * stream of the context that is current on the calling thread. A stream that was passed with a frame
 * must not be destroyed before the frame is released, since the release is queued behind its work then:
 * the driver does not always notice a destroyed stream, and can crash, or take the handle for that of
 * another stream. frameshare_frame_done_on ends the use of a stream earlier. The handle of the
 * per-thread default stream (2) means another stream on each thread and is refused.
 */

#ifndef FRAMESHARE_H
#define FRAMESHARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FRAMESHARE_VERSION_MAJOR 0
#define FRAMESHARE_VERSION_MINOR 1
#define FRAMESHARE_VERSION_PATCH 0

/** The value of a time that is not known. */
#define FRAMESHARE_NO_TIME UINT64_MAX

/** Kinds of events from this number on are for applications; framesharesrc passes over them. */
#define FRAMESHARE_EVENT_APPLICATION UINT32_C (0x80000000)

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Statuses ------------------------------------------------------------------------------- */

/** The result of a call. Later versions may add values. */
typedef enum frameshare_status {
  /** Success. */
  FRAMESHARE_OK = 0,
  /**
   * Nothing came within the timeout. No failure: frameshare_last_error() stays as it is, unless the
   * reader holds all frames that it may: then it says so.
   */
  FRAMESHARE_TIMEOUT = 1,
  /** The stream has ended, and may go on later. No failure, as FRAMESHARE_TIMEOUT. */
  FRAMESHARE_END_OF_STREAM = 2,
  /** The wait was interrupted. */
  FRAMESHARE_INTERRUPTED = 3,
  /** An argument is NULL, out of range, not a stream, or used by another thread. */
  FRAMESHARE_INVALID_ARGUMENT = 4,
  /** No exporter of this stream was found, or it does not answer. */
  FRAMESHARE_NOT_FOUND = 5,
  /** The stream, its folder or its exporter is of a user that is not allowed. */
  FRAMESHARE_PERMISSION_DENIED = 6,
  /** Another process exports a stream of this name. */
  FRAMESHARE_IN_USE = 7,
  /** The exporter refuses the reader: no credit is left, or the policy is not granted. */
  FRAMESHARE_REFUSED = 8,
  /** The exporter closed the stream. */
  FRAMESHARE_EXPORTER_STOPPED = 9,
  /** The exporter crashed, was killed, or its GPU failed. */
  FRAMESHARE_EXPORTER_LOST = 10,
  /** The exporter disconnected this reader: it was too slow or exceeded a limit. */
  FRAMESHARE_EVICTED = 11,
  /** The peer uses another version of the protocol, or violated it. */
  FRAMESHARE_PROTOCOL = 12,
  /** The CUDA driver is missing or failed, or the GPU cannot be used. */
  FRAMESHARE_CUDA = 13,
  /** The frame, its format or its memory does not have what was asked for. */
  FRAMESHARE_UNSUPPORTED = 14,
  /** Memory, slots, descriptors or another limited resource is used up. */
  FRAMESHARE_NO_RESOURCES = 15,
  /** A system call failed for another reason. */
  FRAMESHARE_SYSTEM = 16,
  /** A bug in libframeshare. */
  FRAMESHARE_INTERNAL = 17,
  /** The reader holds all frames that it may, so that none can come. */
  FRAMESHARE_ALL_HELD = 18
} frameshare_status;

/**
 * Returns the library's version, such as "0.1.0".
 *
 * Ownership: the text is static.
 * Failure: none.
 * Threads: any.
 */
const char *frameshare_version (void);

/**
 * Returns the name of a status, such as "exporter lost".
 *
 * Ownership: the text is static.
 * Failure: "unknown status" for a number that is none.
 * Threads: any.
 */
const char *frameshare_status_name (frameshare_status status);

/**
 * Returns the message of the last call of this thread that failed, for people: the reason, then
 * what to do.
 *
 * Ownership: the library's; the text is valid until the next call of this thread that fails.
 * Failure: "" if no call has failed.
 * Threads: any; each has its own message.
 */
const char *frameshare_last_error (void);

/** The level of a message. */
typedef enum frameshare_log_level {
  FRAMESHARE_LOG_ERROR = 1,
  FRAMESHARE_LOG_WARNING = 2,
  FRAMESHARE_LOG_INFO = 3
} frameshare_log_level;

/**
 * Takes a message, which is valid during the call. It must not call the library, and must return: no
 * exception, no longjmp(3), no pthread_exit(3).
 */
typedef void (*frameshare_log_function) (frameshare_log_level level, const char *message, void *data);

/**
 * Sets the function that gets messages of the library: readers that join, leave or are refused, and
 * problems that are no failure of a call. It is called by any thread. When the call returns, the function
 * before is not called any more.
 *
 * @param function the function, or NULL for none, which is the default
 * @param data passed to each call
 *
 * Ownership: the data is the caller's, and valid until the function is replaced.
 * Failure: UNSUPPORTED if this program has another logger of Rust's crate log; INVALID_ARGUMENT in the
 *   function itself.
 * Threads: any.
 */
frameshare_status frameshare_set_log (frameshare_log_function function, void *data);

/* ---- Video ---------------------------------------------------------------------------------- */

/** The memory of frames. */
typedef enum frameshare_memory {
  /** Host memory. A reader gets frames that are in GPU memory as copies in host memory. */
  FRAMESHARE_MEMORY_HOST = 0,
  /** CUDA memory. A reader gets frames that are in host memory as they are, in host memory. */
  FRAMESHARE_MEMORY_CUDA = 1,
  /** For readers: as CUDA, and copies in host memory if frames cannot be read in GPU memory. */
  FRAMESHARE_MEMORY_CUDA_OR_HOST = 2
} frameshare_memory;

/** Arrangement of fields in frames. */
typedef enum frameshare_interlacing {
  FRAMESHARE_INTERLACING_PROGRESSIVE = 0,
  /** A frame has the rows of two fields by turns. */
  FRAMESHARE_INTERLACING_INTERLEAVED = 1,
  /** Progressive and interleaved frames. */
  FRAMESHARE_INTERLACING_MIXED = 2,
  /** Fields in separate buffers of one frame. */
  FRAMESHARE_INTERLACING_FIELDS = 3,
  /** Each frame of the stream is one field, with half the rows. */
  FRAMESHARE_INTERLACING_ALTERNATE = 4
} frameshare_interlacing;

/** The range of the samples. */
typedef enum frameshare_color_range {
  FRAMESHARE_RANGE_UNKNOWN = 0,
  /** All values: 0 to 255 in 8 bits. */
  FRAMESHARE_RANGE_FULL = 1,
  /** Video range: luma from 16 to 235 in 8 bits. */
  FRAMESHARE_RANGE_LIMITED = 2
} frameshare_color_range;

/** The matrix from RGB to YUV. */
typedef enum frameshare_color_matrix {
  FRAMESHARE_MATRIX_UNKNOWN = 0,
  FRAMESHARE_MATRIX_RGB = 1,
  FRAMESHARE_MATRIX_FCC = 2,
  FRAMESHARE_MATRIX_BT709 = 3,
  FRAMESHARE_MATRIX_BT601 = 4,
  FRAMESHARE_MATRIX_SMPTE240M = 5,
  FRAMESHARE_MATRIX_BT2020 = 6
} frameshare_color_matrix;

/** The transfer function. */
typedef enum frameshare_transfer {
  FRAMESHARE_TRANSFER_UNKNOWN = 0,
  FRAMESHARE_TRANSFER_GAMMA10 = 1,
  FRAMESHARE_TRANSFER_GAMMA18 = 2,
  FRAMESHARE_TRANSFER_GAMMA20 = 3,
  FRAMESHARE_TRANSFER_GAMMA22 = 4,
  FRAMESHARE_TRANSFER_BT709 = 5,
  FRAMESHARE_TRANSFER_SMPTE240M = 6,
  FRAMESHARE_TRANSFER_SRGB = 7,
  FRAMESHARE_TRANSFER_GAMMA28 = 8,
  FRAMESHARE_TRANSFER_LOG100 = 9,
  FRAMESHARE_TRANSFER_LOG316 = 10,
  FRAMESHARE_TRANSFER_BT2020_12 = 11,
  FRAMESHARE_TRANSFER_ADOBE_RGB = 12,
  FRAMESHARE_TRANSFER_BT2020_10 = 13,
  FRAMESHARE_TRANSFER_SMPTE2084 = 14,
  FRAMESHARE_TRANSFER_ARIB_STD_B67 = 15,
  FRAMESHARE_TRANSFER_BT601 = 16
} frameshare_transfer;

/** The color primaries. */
typedef enum frameshare_color_primaries {
  FRAMESHARE_PRIMARIES_UNKNOWN = 0,
  FRAMESHARE_PRIMARIES_BT709 = 1,
  FRAMESHARE_PRIMARIES_BT470M = 2,
  FRAMESHARE_PRIMARIES_BT470BG = 3,
  FRAMESHARE_PRIMARIES_SMPTE170M = 4,
  FRAMESHARE_PRIMARIES_SMPTE240M = 5,
  FRAMESHARE_PRIMARIES_FILM = 6,
  FRAMESHARE_PRIMARIES_BT2020 = 7,
  FRAMESHARE_PRIMARIES_ADOBE_RGB = 8,
  FRAMESHARE_PRIMARIES_SMPTE_ST428 = 9,
  FRAMESHARE_PRIMARIES_SMPTE_RP431 = 10,
  FRAMESHARE_PRIMARIES_SMPTE_EG432 = 11,
  FRAMESHARE_PRIMARIES_EBU3213 = 12
} frameshare_color_primaries;

/** The meaning of the samples as colors. */
typedef struct frameshare_color {
  frameshare_color_range range;
  frameshare_color_matrix matrix;
  frameshare_transfer transfer;
  frameshare_color_primaries primaries;
} frameshare_color;

/** The format of raw video. */
typedef struct frameshare_format {
  size_t size;
  /** The name in GStreamer's caps, such as "NV12", "I420", "RGB", "GRAY8". Static if set by the library. */
  const char *pixel_format;
  /** Width in pixels and height in rows, not 0. */
  uint32_t width;
  uint32_t height;
  /** Frames per second, as a fraction; 0/1 for a rate that varies. */
  uint32_t rate_numerator;
  uint32_t rate_denominator;
  /** Width of a pixel divided by its height. */
  uint32_t pixel_aspect_numerator;
  uint32_t pixel_aspect_denominator;
  /** Number of planes. Set by the library; not read by it. */
  uint32_t plane_count;
  frameshare_interlacing interlacing;
  /** All unknown: GStreamer's default for the pixel format and the height. */
  frameshare_color color;
} frameshare_format;

#define FRAMESHARE_FORMAT_INIT \
  { sizeof (frameshare_format), NULL, 0, 0, 0, 1, 1, 1, 0, FRAMESHARE_INTERLACING_PROGRESSIVE, \
    { FRAMESHARE_RANGE_UNKNOWN, FRAMESHARE_MATRIX_UNKNOWN, FRAMESHARE_TRANSFER_UNKNOWN, \
      FRAMESHARE_PRIMARIES_UNKNOWN } }

/** The place of a plane of a frame. Every row of it is inside the frame. */
typedef struct frameshare_plane {
  size_t size;
  /** Columns and rows of pixels; 256 and 1 for a palette. */
  uint32_t width;
  uint32_t height;
  /** Bytes from one row to the next; negative for bottom-up images. For tiles, of a row of tiles. */
  ptrdiff_t stride;
  /** Bytes of a row; for tiles, as stride. */
  size_t row_bytes;
  /** The top row in host memory; NULL in CUDA memory. */
  const uint8_t *data;
  /** The same address for a frame that is not published yet; NULL for a frame that was read. */
  uint8_t *writable;
  /** The CUdeviceptr of the top row; 0 in host memory. */
  uint64_t device_pointer;
  /** Bytes of a row of a tile, and rows of a tile; 0 if the plane consists of rows. */
  uint32_t tile_row_bytes;
  uint32_t tile_rows;
} frameshare_plane;

#define FRAMESHARE_PLANE_INIT { sizeof (frameshare_plane), 0, 0, 0, 0, NULL, NULL, 0, 0, 0 }

/* ---- Readers -------------------------------------------------------------------------------- */

/** A reader of one stream. */
typedef struct frameshare_reader frameshare_reader;

/** A frame that may be read until it is released. */
typedef struct frameshare_frame frameshare_frame;

/** The treatment of frames that a reader does not take in time. */
typedef enum frameshare_policy {
  /** The newest frames are kept, older ones are lost. The exporter is never delayed. */
  FRAMESHARE_POLICY_LATEST = 0,
  /** The exporter waits for the reader, within its own limits. */
  FRAMESHARE_POLICY_LOSSLESS = 1
} frameshare_policy;

/** Configuration of a reader. */
typedef struct frameshare_reader_config {
  size_t size;
  /** Name of the reader in the exporter's statistics; NULL is the name of the program. */
  const char *name;
  frameshare_policy policy;
  /** Number of frames to hold at once, up to 64; the exporter may grant fewer. 0: as it decides. */
  uint32_t max_held;
  /** For latest: maximum number of frames that wait to be taken, up to 64. 0: as the exporter decides. */
  uint32_t max_queued;
  /**
   * Share of a core to spend spinning in frameshare_reader_next, in percent. 0 sleeps, and 100 always
   * spins. Between them the reader spins when the next frame is expected, as long as the share allows.
   */
  uint32_t spin;
  frameshare_memory memory;
  /** Number of the GPU in CUDA calls, whose primary context is used. Not read with HOST memory. */
  int32_t cuda_device_id;
  /** Its UUID instead, as nvidia-smi -L prints it, or NULL. */
  const char *cuda_uuid;
  /** A CUcontext to use instead, or NULL. See frameshare_wait_for_gpu before destroying it. */
  void *cuda_context;
  /** Whether to search for the next exporter when this one ends. */
  bool reconnect;
  /** Whether to return from frameshare_reader_open at once, and search in frameshare_reader_next. */
  bool lazy;
  /** Maximum time of frameshare_reader_open. */
  int64_t connection_timeout_ns;
  /** Maximum time of the search for the next exporter. */
  int64_t reconnect_timeout_ns;
  /** Maximum time of the exporter's GPU work on a frame, not 0. */
  uint64_t fence_timeout_ns;
  /**
   * The user that the exporter must run as. -1: any, or this user and root where others can write
   * to the folder of the socket.
   */
  int64_t exporter_uid;
} frameshare_reader_config;

#define FRAMESHARE_READER_CONFIG_INIT \
  { sizeof (frameshare_reader_config), NULL, FRAMESHARE_POLICY_LATEST, 4, 1, 0, FRAMESHARE_MEMORY_HOST, \
    0, NULL, NULL, true, false, INT64_C (5000000000), INT64_C (-1), UINT64_C (2000000000), INT64_C (-1) }

/** Statistics of a reader over all its connections. */
typedef struct frameshare_reader_stats {
  size_t size;
  /** The run of the stream that it reads. */
  uint64_t session;
  /** Frames taken, frames lost, and reconnections. */
  uint64_t received;
  uint64_t lost;
  uint64_t reconnects;
  /** Time spent spinning for items, and frames that came during a spin. */
  uint64_t spin_time_ns;
  uint64_t spin_frames;
  /** Frames that came when they were written, since enough GPU streams of this process waited for others, or GPU
   *  memory was to be freed. */
  uint64_t gpu_wait_limited;
  /** The exporter's process. */
  uint32_t exporter_pid;
  /** Maximum number of frames that it may hold, and the number that it holds. */
  uint32_t credit;
  uint32_t held;
} frameshare_reader_stats;

#define FRAMESHARE_READER_STATS_INIT { sizeof (frameshare_reader_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/** The kind of an item. */
typedef enum frameshare_item_kind {
  FRAMESHARE_ITEM_FRAME = 0,
  /** The format of the following frames. */
  FRAMESHARE_ITEM_FORMAT = 1,
  /** An event of the exporter, with its place among the frames. */
  FRAMESHARE_ITEM_EVENT = 2,
  /** The stream has ended, and may go on later. */
  FRAMESHARE_ITEM_END_OF_STREAM = 3,
  /** The next exporter was found, or the first one of a lazy reader. Sequence numbers start again. */
  FRAMESHARE_ITEM_RECONNECTED = 4
} frameshare_item_kind;

/** The next item of a stream. Fields of other kinds are NULL or 0. */
typedef struct frameshare_item {
  size_t size;
  frameshare_item_kind kind;
  /** FRAME: the caller's, to be released. */
  frameshare_frame *frame;
  /** FORMAT: caps of GStreamer as text, valid until the reader is used next. */
  const char *caps;
  /** EVENT: its kind and payload, valid until the reader is used next. */
  uint32_t event_kind;
  const void *event_payload;
  size_t event_size;
  /** EVENT: whether joining readers get the newest event of the kind. */
  bool event_is_sticky;
} frameshare_item;

#define FRAMESHARE_ITEM_INIT { sizeof (frameshare_item), FRAMESHARE_ITEM_FRAME, NULL, NULL, 0, NULL, 0, false }

/**
 * Opens a stream by its name, by the path of its socket if it contains a slash, or by an abstract
 * socket if it begins with @. Waits for its exporter.
 *
 * @param stream the stream; not kept
 * @param config the configuration, or NULL for the defaults; not kept
 * @param reader set to the reader
 *
 * Ownership: the reader is the caller's, until frameshare_reader_close.
 * Failure: INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, REFUSED, PROTOCOL, CUDA, NO_RESOURCES, SYSTEM;
 *   *reader is NULL.
 * Threads: any.
 */
frameshare_status frameshare_reader_open (const char *stream, const frameshare_reader_config *config,
                                          frameshare_reader **reader);

/**
 * Closes a reader. Frames that are held stay valid. NULL is ignored.
 *
 * Ownership: takes the reader.
 * Failure: none.
 * Threads: no other thread may use the reader.
 */
void frameshare_reader_close (frameshare_reader *reader);

/**
 * Returns the next frame. Formats, events and reconnections are passed over.
 *
 * @param timeout_ns maximum time to wait; a search for the next exporter takes no longer either
 * @param frame set to the frame
 *
 * Ownership: the frame is the caller's, until frameshare_frame_release or frameshare_frame_release_on.
 * Failure: TIMEOUT; END_OF_STREAM, after which a call waits for the stream to go on; INTERRUPTED;
 *   ALL_HELD if a wait without limit has lasted for 5 s, in which the reader held all frames that it
 *   may: release one, or call again if another thread does. The reader cannot go on after
 *   EXPORTER_STOPPED, EXPORTER_LOST, EVICTED, PROTOCOL, CUDA, NO_RESOURCES, SYSTEM; with reconnect, the
 *   first two are not returned, and after NOT_FOUND each call makes one more attempt. *frame is NULL.
 * Threads: one at a time.
 */
frameshare_status frameshare_reader_next (frameshare_reader *reader, int64_t timeout_ns, frameshare_frame **frame);

/**
 * Returns the next item in order: a frame, a format, an event, the end, a reconnection.
 *
 * @param timeout_ns as for frameshare_reader_next
 * @param item set to the item
 *
 * Ownership: a frame is the caller's; texts and payloads are the reader's, until it is used next.
 * Failure: as frameshare_reader_next, but the end is an item; the item's pointers are NULL.
 * Threads: one at a time.
 */
frameshare_status frameshare_reader_next_item (frameshare_reader *reader, int64_t timeout_ns, frameshare_item *item);

/**
 * Returns a descriptor for poll(2), epoll(7) and event loops, the same one for the reader's life. First
 * call frameshare_reader_next or frameshare_reader_next_item with a timeout of 0 until it returns
 * FRAMESHARE_TIMEOUT; from then on the descriptor is readable when an item may be there, and the same
 * calls follow. Nothing else may be done with it.
 *
 * Ownership: the descriptor is the reader's.
 * Failure: INVALID_ARGUMENT; *fd is -1.
 * Threads: one at a time.
 */
frameshare_status frameshare_reader_get_fd (frameshare_reader *reader, int *fd);

/**
 * Ends the present and all later waits of the reader with FRAMESHARE_INTERRUPTED, until it is called
 * with false. It takes a lock: a signal handler must not call it.
 *
 * Ownership: unchanged.
 * Failure: INVALID_ARGUMENT for NULL.
 * Threads: any.
 */
frameshare_status frameshare_reader_interrupt (frameshare_reader *reader, bool on);

/**
 * Asks the exporter of an encoded stream for a key unit, such as a key frame: its owner asks the
 * encoder at most once a second. Does not wait. It does nothing while there is no exporter.
 *
 * Ownership: unchanged.
 * Failure: INVALID_ARGUMENT for NULL.
 * Threads: any.
 */
frameshare_status frameshare_reader_request_key_unit (frameshare_reader *reader);

/**
 * Returns statistics as of the last item, with the present number of held frames. Does not wait for a
 * thread that waits for an item, nor disturb it.
 *
 * Ownership: unchanged.
 * Failure: INVALID_ARGUMENT; *stats is unchanged.
 * Threads: any.
 */
frameshare_status frameshare_reader_get_stats (frameshare_reader *reader, frameshare_reader_stats *stats);

/* ---- Frames --------------------------------------------------------------------------------- */

/** The description of a frame. */
typedef struct frameshare_frame_info {
  size_t size;
  /** Number of the frame in its session, counted from 1; and the run of the stream. */
  uint64_t sequence;
  uint64_t session;
  /** Number of frames lost between the previous frame and this one. */
  uint64_t lost_before;
  /** Presentation time, duration and time of publication; FRAMESHARE_NO_TIME if not known. */
  uint64_t pts_ns;
  uint64_t duration_ns;
  uint64_t published_ns;
  /** Flags of the publisher. */
  uint64_t flags;
  /** HOST or CUDA. */
  frameshare_memory memory;
  /** The frame was published before the reader joined, and the exporter had kept it. */
  bool is_kept;
  /** Bytes of the frame. */
  size_t byte_count;
  /** Metadata of the publisher, valid until the frame is released. framesharesink writes its own form. */
  const void *metadata;
  size_t metadata_size;
} frameshare_frame_info;

#define FRAMESHARE_FRAME_INFO_INIT \
  { sizeof (frameshare_frame_info), 0, 0, 0, FRAMESHARE_NO_TIME, FRAMESHARE_NO_TIME, FRAMESHARE_NO_TIME, 0, \
    FRAMESHARE_MEMORY_HOST, false, 0, NULL, 0 }

/**
 * Returns the description of a frame.
 *
 * Ownership: pointers in *info are the frame's.
 * Failure: INVALID_ARGUMENT; *info is unchanged.
 * Threads: any.
 */
frameshare_status frameshare_frame_get_info (const frameshare_frame *frame, frameshare_frame_info *info);

/**
 * Returns the video format of a frame.
 *
 * Ownership: pointers in *format are static.
 * Failure: INVALID_ARGUMENT; UNSUPPORTED if the stream is not raw video of a known format; *format is
 *   unchanged.
 * Threads: any.
 */
frameshare_status frameshare_frame_get_format (const frameshare_frame *frame, frameshare_format *format);

/**
 * Returns a plane of a frame. The memory is read-only; it does not change while the frame is held,
 * unless a program of the exporter's user breaks the rules of the protocol.
 *
 * In CUDA memory, the frame may not be written yet: make each stream that reads it wait with
 * frameshare_frame_wait_on. The library has no reference to these streams: the release of the frame waits
 * for all work of the reader's context. frameshare_frame_get_plane_on does both for one stream only.
 *
 * @param index number of the plane, counted from 0
 *
 * Ownership: the memory is the frame's.
 * Failure: INVALID_ARGUMENT; UNSUPPORTED if the format is not known or the frame is cropped; PROTOCOL if
 *   rows overlap or are not inside the frame; *plane is unchanged.
 * Threads: any.
 */
frameshare_status frameshare_frame_get_plane (const frameshare_frame *frame, uint32_t index,
                                              frameshare_plane *plane);

/**
 * Returns a plane of a frame for work that is queued on a CUDA stream from now on. The work starts when
 * the frame is written, and the frame's slot is written again when the work that was queued until the
 * release is done. Does not wait. Host memory: as frameshare_frame_get_plane.
 *
 * Ownership: the memory is the frame's. The stream must not be destroyed before the release.
 * Failure: as frameshare_frame_get_plane; INVALID_ARGUMENT for a stream that is none; CUDA, also if the
 *   stream is being captured; *plane is unchanged.
 * Threads: any.
 */
frameshare_status frameshare_frame_get_plane_on (const frameshare_frame *frame, uint32_t index, void *stream,
                                                 frameshare_plane *plane);

/**
 * Returns all bytes of a frame in host memory, such as audio or a unit of encoded video.
 *
 * Ownership: the memory is the frame's.
 * Failure: INVALID_ARGUMENT; UNSUPPORTED for CUDA memory; *data is NULL and *byte_count is 0.
 * Threads: any.
 */
frameshare_status frameshare_frame_get_data (const frameshare_frame *frame, const void **data, size_t *byte_count);

/**
 * Copies the rows of a plane in host memory, from the top, each stride bytes behind the one before.
 *
 * @param target_size bytes of the target; the last row needs row_bytes only
 *
 * Ownership: the target is the caller's.
 * Failure: INVALID_ARGUMENT, also if the rows do not fit; UNSUPPORTED for CUDA memory and for tiles.
 * Threads: any.
 */
frameshare_status frameshare_frame_copy_plane (const frameshare_frame *frame, uint32_t index, void *target,
                                               size_t target_size, size_t stride);

/**
 * Makes work that is queued on a CUDA stream from now on start after the frame is written. Does not
 * wait, and does nothing for host memory. Needed only for addresses of frameshare_frame_get_plane.
 *
 * Ownership: the stream must not be destroyed before the release.
 * Failure: INVALID_ARGUMENT for a stream that is none; CUDA, also if the stream is being captured.
 * Threads: any.
 */
frameshare_status frameshare_frame_wait_on (const frameshare_frame *frame, void *stream);

/**
 * Names a CUDA stream on which the frame is read: the release also waits for its work until then. For
 * further streams besides that of frameshare_frame_get_plane_on. Does nothing for host memory.
 *
 * Ownership: the stream must not be destroyed before the release.
 * Failure: INVALID_ARGUMENT for a stream that is none; CUDA.
 * Threads: any.
 */
frameshare_status frameshare_frame_used_on_stream (const frameshare_frame *frame, void *stream);

/**
 * Ends the use of a frame on a CUDA stream: the release waits for the work that was queued on it so far,
 * and for none later. Does not wait. Needed only if the stream is destroyed before the release. Does
 * nothing for host memory.
 *
 * Ownership: the stream may be destroyed after this.
 * Failure: INVALID_ARGUMENT for a stream that is none; CUDA, also if the stream is being captured. The
 *   stream must not be destroyed before the release then.
 * Threads: any.
 */
frameshare_status frameshare_frame_done_on (const frameshare_frame *frame, void *stream);

/**
 * Releases a frame. Does not wait: its slot returns to the exporter when the work on the streams that
 * were named is done. NULL is ignored.
 *
 * Ownership: takes the frame.
 * Failure: none.
 * Threads: no other thread may use the frame.
 */
void frameshare_frame_release (frameshare_frame *frame);

/**
 * Releases a frame after the work that was queued on this CUDA stream, and the work before each
 * frameshare_frame_done_on, which together must be all work on the frame. Does not wait.
 *
 * Ownership: takes the frame, in case of a failure too. If the stream is being captured, it must not be
 *   destroyed before the capture has ended.
 * Failure: CUDA. INVALID_ARGUMENT for a stream that is none: the release then waits for all work of the
 *   reader's context.
 * Threads: no other thread may use the frame.
 */
frameshare_status frameshare_frame_release_on (frameshare_frame *frame, void *stream);

/**
 * Waits until all GPU memory of closed readers and exporters and of released frames is freed. Call it
 * before a CUDA context is destroyed that was passed to the library.
 *
 * Ownership: unchanged.
 * Failure: TIMEOUT.
 * Threads: any.
 */
frameshare_status frameshare_wait_for_gpu (int64_t timeout_ns);

/** An announcement of a stream capture. */
typedef struct frameshare_capture frameshare_capture;

/**
 * Announces a capture of a CUDA stream into a graph by any thread of this process. Until
 * frameshare_capture_end, the library records nothing behind a whole context, which would invalidate
 * the capture; frames whose streams are not known are released after it. Needed for streams that were
 * created with CU_STREAM_NON_BLOCKING, unless all streams are named
 * (frameshare_frame_get_plane_on). Announcements of several threads add up.
 *
 * @param capture set to the announcement
 *
 * Ownership: the announcement is the caller's, until frameshare_capture_end.
 * Failure: INVALID_ARGUMENT; *capture is NULL.
 * Threads: any.
 */
frameshare_status frameshare_capture_announce (frameshare_capture **capture);

/**
 * Ends an announcement. NULL is ignored.
 *
 * Ownership: takes the announcement.
 * Failure: none.
 * Threads: any; another one than announced it, too.
 */
void frameshare_capture_end (frameshare_capture *capture);

/* ---- Exporters ------------------------------------------------------------------------------ */

/** An exporter of one stream of raw video. */
typedef struct frameshare_exporter frameshare_exporter;

/** A frame that is written, and then published. */
typedef struct frameshare_new_frame frameshare_new_frame;

/** Readers that may be lossless. */
typedef enum frameshare_lossless_readers {
  FRAMESHARE_LOSSLESS_READERS_NONE = 0,
  /** Those of the exporter's user, and root's. */
  FRAMESHARE_LOSSLESS_READERS_OWN_UID = 1,
  FRAMESHARE_LOSSLESS_READERS_ALL = 2
} frameshare_lossless_readers;

/** The treatment of lossless readers that hold all the frames they may. */
typedef enum frameshare_slow_readers {
  /** The exporter waits for them, at most reader_timeout_ns. */
  FRAMESHARE_SLOW_READERS_WAIT = 0,
  /** Frames wait for them, within limits; then the exporter does. */
  FRAMESHARE_SLOW_READERS_QUEUE_THEN_WAIT = 1,
  /** Frames wait for them, within limits; then they are disconnected. For live sources. */
  FRAMESHARE_SLOW_READERS_QUEUE_THEN_DISCONNECT = 2
} frameshare_slow_readers;

/** Configuration of an exporter. */
typedef struct frameshare_exporter_config {
  size_t size;
  /** HOST or CUDA. */
  frameshare_memory memory;
  /** As in frameshare_reader_config. */
  int32_t cuda_device_id;
  const char *cuda_uuid;
  void *cuda_context;
  /** Maximum number of slots, 4 to 1024. */
  uint32_t max_slots;
  /** Maximum number of frames that one reader may hold, 1 to 64. */
  uint32_t max_held_limit;
  frameshare_lossless_readers lossless_readers;
  frameshare_slow_readers slow_readers;
  /** Maximum time that a lossless reader may hold the stream back before it is disconnected. */
  uint64_t reader_timeout_ns;
  /** Mode of the socket; others than 0600 need a path for the stream. */
  uint32_t socket_mode;
  /** Users and groups besides the own user and root that may read. Not kept. */
  const uint32_t *allowed_uids;
  size_t allowed_uid_count;
  const uint32_t *allowed_gids;
  size_t allowed_gid_count;
} frameshare_exporter_config;

#define FRAMESHARE_EXPORTER_CONFIG_INIT \
  { sizeof (frameshare_exporter_config), FRAMESHARE_MEMORY_HOST, 0, NULL, NULL, 512, 16, \
    FRAMESHARE_LOSSLESS_READERS_OWN_UID, FRAMESHARE_SLOW_READERS_WAIT, UINT64_C (5000000000), 0600, NULL, 0, \
    NULL, 0 }

/** Statistics of an exporter. */
typedef struct frameshare_exporter_stats {
  size_t size;
  /** Frames published. */
  uint64_t published;
  /** Readers admitted so far, and present ones. */
  uint64_t readers_total;
  uint32_t readers;
  /** Slots allocated, free ones, and their maximum. */
  uint32_t slots;
  uint32_t free_slots;
  uint32_t max_slots;
  /** Bytes of a slot; 0 before the first. */
  uint64_t slot_size;
} frameshare_exporter_stats;

#define FRAMESHARE_EXPORTER_STATS_INIT { sizeof (frameshare_exporter_stats), 0, 0, 0, 0, 0, 0, 0 }

/** Options of a publication. */
typedef struct frameshare_publish_options {
  size_t size;
  /** Presentation time; FRAMESHARE_NO_TIME is now. */
  uint64_t pts_ns;
  /** Duration; FRAMESHARE_NO_TIME is that of the format's rate. */
  uint64_t duration_ns;
  /** Metadata for readers, up to 64 MiB. Not kept. framesharesrc drops it with a warning. */
  const void *metadata;
  size_t metadata_size;
  /** How long to wait for lossless readers without room; negative is without limit. */
  int64_t timeout_ns;
} frameshare_publish_options;

#define FRAMESHARE_PUBLISH_OPTIONS_INIT \
  { sizeof (frameshare_publish_options), FRAMESHARE_NO_TIME, FRAMESHARE_NO_TIME, NULL, 0, -1 }

/**
 * Opens a stream for readers, by a name, a path or an abstract socket as in frameshare_reader_open.
 *
 * @param format the format of the frames; not kept
 * @param config the configuration, or NULL for the defaults; not kept
 *
 * Ownership: the exporter is the caller's, until frameshare_exporter_close.
 * Failure: INVALID_ARGUMENT, IN_USE, PERMISSION_DENIED, CUDA, UNSUPPORTED, NO_RESOURCES, SYSTEM;
 *   *exporter is NULL.
 * Threads: any.
 */
frameshare_status frameshare_exporter_create (const char *stream, const frameshare_format *format,
                                              const frameshare_exporter_config *config,
                                              frameshare_exporter **exporter);

/**
 * Closes the stream: readers get FRAMESHARE_EXPORTER_STOPPED, and keep the frames that they hold. Frames
 * that were acquired can only be discarded. NULL is ignored.
 *
 * Ownership: takes the exporter.
 * Failure: none.
 * Threads: no other thread may use the exporter.
 */
void frameshare_exporter_close (frameshare_exporter *exporter);

/**
 * Sets the format of the following frames. Frames that were acquired before can only be discarded.
 *
 * Ownership: *format is not kept.
 * Failure: INVALID_ARGUMENT, UNSUPPORTED; the format stays as it is.
 * Threads: any.
 */
frameshare_status frameshare_exporter_set_format (frameshare_exporter *exporter, const frameshare_format *format);

/**
 * Returns a frame to be written and published. Its former content is undefined. Waits for a slot if all
 * are in use, and for the GPU if it is far behind with the frames before.
 *
 * @param timeout_ns how long to wait; negative is as long as a slot can become free
 *
 * Ownership: the frame is the caller's, until it is published or discarded.
 * Failure: INVALID_ARGUMENT, INTERRUPTED, NO_RESOURCES if no slot became free in time, CUDA; *frame is NULL.
 * Threads: any.
 */
frameshare_status frameshare_exporter_acquire (frameshare_exporter *exporter, int64_t timeout_ns,
                                               frameshare_new_frame **frame);

/**
 * Returns a plane of a frame to be written: at writable in host memory, at device_pointer in CUDA
 * memory. The work that writes it need not wait for anything: neither for readers nor for former work on
 * the memory, on whatever stream.
 *
 * Ownership: the memory is the frame's.
 * Failure: INVALID_ARGUMENT; *plane is unchanged.
 * Threads: any.
 */
frameshare_status frameshare_new_frame_get_plane (const frameshare_new_frame *frame, uint32_t index,
                                                  frameshare_plane *plane);

/**
 * Gives a frame back unpublished. NULL is ignored. Does not wait: if the device pointer of a plane was
 * returned, its memory is written again when all work of the exporter's context so far is done.
 *
 * Ownership: takes the frame.
 * Failure: none.
 * Threads: no other thread may use the frame.
 */
void frameshare_new_frame_discard (frameshare_new_frame *frame);

/**
 * Publishes a frame to every reader. Waits for lossless readers, each at most reader_timeout_ns. In CUDA
 * memory, readers wait for all work of the exporter's context so far; frameshare_exporter_publish_on is
 * cheaper.
 *
 * @param options times and metadata, or NULL for the defaults; not kept
 * @param sequence set to the frame's number in the stream; may be NULL
 *
 * Ownership: takes the frame, in case of a failure too, but for TIMEOUT: then the frame is still the
 *   caller's, who may publish it again or discard it.
 * Failure: INVALID_ARGUMENT, also for a frame of another exporter or of an earlier format; TIMEOUT;
 *   INTERRUPTED; CUDA. No reader has the frame.
 * Threads: any.
 */
frameshare_status frameshare_exporter_publish (frameshare_exporter *exporter, frameshare_new_frame *frame,
                                               const frameshare_publish_options *options, uint64_t *sequence);

/**
 * Publishes a frame that the work queued so far on this CUDA stream writes, as
 * frameshare_exporter_publish. Host memory: the stream is not used.
 *
 * Ownership: as frameshare_exporter_publish. The stream may be destroyed after this.
 * Failure: as frameshare_exporter_publish; INVALID_ARGUMENT for a stream that is none.
 * Threads: as frameshare_exporter_publish.
 */
frameshare_status frameshare_exporter_publish_on (frameshare_exporter *exporter, frameshare_new_frame *frame,
                                                  void *stream, const frameshare_publish_options *options,
                                                  uint64_t *sequence);

/**
 * Sends an event to readers, with its place before the next frame.
 *
 * @param kind FRAMESHARE_EVENT_APPLICATION or above
 * @param is_sticky whether a joining reader gets the newest event of this kind
 *
 * Ownership: the payload is not kept.
 * Failure: INVALID_ARGUMENT, also for more than 64 MiB.
 * Threads: any.
 */
frameshare_status frameshare_exporter_send_event (frameshare_exporter *exporter, uint32_t kind, bool is_sticky,
                                                  const void *payload, size_t payload_size);

/**
 * Marks the end of the stream for readers; the next frame continues it.
 *
 * Ownership: unchanged.
 * Failure: INVALID_ARGUMENT for NULL.
 * Threads: any.
 */
frameshare_status frameshare_exporter_end_stream (frameshare_exporter *exporter);

/**
 * Waits for the first reader.
 *
 * @param timeout_ns how long to wait; negative is without limit
 *
 * Ownership: unchanged.
 * Failure: INVALID_ARGUMENT, TIMEOUT, INTERRUPTED.
 * Threads: any.
 */
frameshare_status frameshare_exporter_wait_for_reader (frameshare_exporter *exporter, int64_t timeout_ns);

/**
 * Waits until lossless readers have taken and released all frames. Call it before closing.
 *
 * Ownership: unchanged.
 * Failure: INVALID_ARGUMENT, TIMEOUT, INTERRUPTED.
 * Threads: any.
 */
frameshare_status frameshare_exporter_drain (frameshare_exporter *exporter, int64_t timeout_ns);

/**
 * Ends the present and all later waits of the exporter with FRAMESHARE_INTERRUPTED, until it is called
 * with false. It takes a lock: a signal handler must not call it.
 *
 * Ownership: unchanged.
 * Failure: INVALID_ARGUMENT for NULL.
 * Threads: any.
 */
frameshare_status frameshare_exporter_interrupt (frameshare_exporter *exporter, bool on);

/**
 * Returns statistics so far.
 *
 * Ownership: unchanged.
 * Failure: INVALID_ARGUMENT; *stats is unchanged.
 * Threads: any.
 */
frameshare_status frameshare_exporter_get_stats (frameshare_exporter *exporter, frameshare_exporter_stats *stats);

/* ---- Observers ------------------------------------------------------------------------------ */

/** An observer of one stream: it gets snapshots of the stream's state, and takes no part in it. */
typedef struct frameshare_observer frameshare_observer;

/** The state of a stream at one time. */
typedef struct frameshare_snapshot frameshare_snapshot;

/** State of a stream. */
typedef struct frameshare_stream_state {
  size_t size;
  /** Time of the snapshot, and the time at which the stream was opened. */
  uint64_t time_ns;
  uint64_t started_ns;
  /** The exporter's process in its own PID namespace, its user, and the name of its program. */
  uint32_t exporter_pid;
  uint32_t exporter_uid;
  const char *exporter_program;
  /** Caps of GStreamer as text; NULL if the format is not known yet. */
  const char *caps;
  /** "host", "legacy", "vmm" or "pool", and the reason. */
  const char *memory;
  const char *memory_why;
  /** Frames published, and the time of the last publication; 0 before the first. */
  uint64_t published;
  uint64_t last_published_ns;
  /** Frames that the exporter copied. */
  uint64_t copies;
  /** Bytes of frames that wait for lossless readers. */
  uint64_t backlog_bytes;
  /** Readers admitted so far. */
  uint64_t readers_total;
  /** Slots of the present size, and the free ones among them. */
  uint32_t slots;
  uint32_t free_slots;
  /** Whether the stream has ended for now. */
  bool has_ended;
} frameshare_stream_state;

#define FRAMESHARE_STREAM_STATE_INIT \
  { sizeof (frameshare_stream_state), 0, 0, 0, 0, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, false }

/** State of a reader of a stream. */
typedef struct frameshare_reader_state {
  size_t size;
  /** Its number, which is unique among all readers of the exporter; its process, user and name. */
  uint64_t id;
  uint32_t pid;
  uint32_t uid;
  const char *name;
  frameshare_policy policy;
  /** Maximum number of frames that it may hold, and the number that it holds. */
  uint32_t credit;
  uint32_t held;
  /** Frames that it has not taken, and frames that wait for its credit. */
  uint32_t queued;
  uint32_t waiting;
  /** Frames published to it, and frames that it lost. */
  uint64_t sent;
  uint64_t lost;
  /** Frames from its oldest untaken one to the newest. */
  uint64_t lag;
  /** Frames that it took, and the sum of the times from their publication until then. */
  uint64_t taken;
  uint64_t age_sum_ns;
  /** Frames that its application copied. */
  uint64_t copies;
  /** The memory in which it gets frames: "host" for copies of GPU frames. */
  const char *memory;
  /** "none", "event" or "timeline", and the reason. */
  const char *fence;
  const char *fence_why;
} frameshare_reader_state;

#define FRAMESHARE_READER_STATE_INIT \
  { sizeof (frameshare_reader_state), 0, 0, 0, NULL, FRAMESHARE_POLICY_LATEST, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
    NULL, NULL, NULL }

/** An eviction of a reader, or a refusal. */
typedef struct frameshare_incident {
  size_t size;
  uint64_t time_ns;
  /** Number of the evicted reader; 0 for a refusal. */
  uint64_t reader;
  uint32_t pid;
  uint32_t uid;
  /** Name of an evicted reader; "" for a refusal. */
  const char *name;
  /** The reason, for people. */
  const char *text;
} frameshare_incident;

#define FRAMESHARE_INCIDENT_INIT { sizeof (frameshare_incident), 0, 0, 0, 0, NULL, NULL }

/**
 * Connects to the exporter of a stream that exists now. The exporter admits the users that may read.
 *
 * @param stream as for frameshare_reader_open; not kept
 * @param interval_ns interval of the snapshots for frameshare_observer_next, at least 100 ms; 0 for
 *   snapshots on request only
 * @param timeout_ns maximum time to wait, now and in each request
 * @param observer set to the observer
 *
 * Ownership: the observer is the caller's, until frameshare_observer_close.
 * Failure: INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, REFUSED, EXPORTER_LOST, PROTOCOL, SYSTEM;
 *   *observer is NULL.
 * Threads: any.
 */
frameshare_status frameshare_observer_open (const char *stream, uint64_t interval_ns, int64_t timeout_ns,
                                            frameshare_observer **observer);

/**
 * Closes an observer. Snapshots stay valid. NULL is ignored.
 *
 * Ownership: takes the observer.
 * Failure: none.
 * Threads: no other thread may use the observer.
 */
void frameshare_observer_close (frameshare_observer *observer);

/**
 * Returns a descriptor for poll(2): readable when frameshare_observer_next has a snapshot, or the
 * connection has ended. Nothing else may be done with it.
 *
 * Ownership: the descriptor is the observer's.
 * Failure: INVALID_ARGUMENT; *fd is -1.
 * Threads: one at a time.
 */
frameshare_status frameshare_observer_get_fd (frameshare_observer *observer, int *fd);

/**
 * Requests a snapshot and waits for it. The exporter sends no two within 100 ms.
 *
 * Ownership: the snapshot is the caller's, until frameshare_snapshot_free.
 * Failure: INVALID_ARGUMENT; NOT_FOUND if the exporter does not answer in time, after which the
 *   observer can be used again; EXPORTER_STOPPED, EXPORTER_LOST, EVICTED, PROTOCOL, SYSTEM;
 *   *snapshot is NULL.
 * Threads: one at a time.
 */
frameshare_status frameshare_observer_snapshot (frameshare_observer *observer, frameshare_snapshot **snapshot);

/**
 * Waits for the next snapshot of the interval.
 *
 * @param timeout_ns maximum time to wait
 *
 * Ownership: the snapshot is the caller's, until frameshare_snapshot_free.
 * Failure: TIMEOUT; INVALID_ARGUMENT; EXPORTER_STOPPED, EXPORTER_LOST, EVICTED, PROTOCOL, SYSTEM;
 *   *snapshot is NULL.
 * Threads: one at a time.
 */
frameshare_status frameshare_observer_next (frameshare_observer *observer, int64_t timeout_ns,
                                            frameshare_snapshot **snapshot);

/**
 * Disconnects a reader, whose error names this process. Only the exporter's user and root may.
 *
 * @param reader its number in a snapshot
 *
 * Ownership: unchanged.
 * Failure: NOT_FOUND if there is no such reader; PERMISSION_DENIED; and as frameshare_observer_snapshot.
 * Threads: one at a time.
 */
frameshare_status frameshare_observer_disconnect_reader (frameshare_observer *observer, uint64_t reader);

/**
 * Returns the state of the stream.
 *
 * Ownership: pointers in *stream are the snapshot's.
 * Failure: INVALID_ARGUMENT; *stream is unchanged.
 * Threads: any.
 */
frameshare_status frameshare_snapshot_get_stream (const frameshare_snapshot *snapshot,
                                                  frameshare_stream_state *stream);

/**
 * Returns the number of readers.
 *
 * Ownership: unchanged.
 * Failure: 0 for NULL.
 * Threads: any.
 */
size_t frameshare_snapshot_reader_count (const frameshare_snapshot *snapshot);

/**
 * Returns the state of a reader.
 *
 * @param index below frameshare_snapshot_reader_count
 *
 * Ownership: pointers in *reader are the snapshot's.
 * Failure: INVALID_ARGUMENT; *reader is unchanged.
 * Threads: any.
 */
frameshare_status frameshare_snapshot_get_reader (const frameshare_snapshot *snapshot, size_t index,
                                                  frameshare_reader_state *reader);

/**
 * Returns the number of evictions and refusals: the last 32.
 *
 * Ownership: unchanged.
 * Failure: 0 for NULL.
 * Threads: any.
 */
size_t frameshare_snapshot_incident_count (const frameshare_snapshot *snapshot);

/**
 * Returns an eviction or a refusal, the oldest first.
 *
 * @param index below frameshare_snapshot_incident_count
 *
 * Ownership: pointers in *incident are the snapshot's.
 * Failure: INVALID_ARGUMENT; *incident is unchanged.
 * Threads: any.
 */
frameshare_status frameshare_snapshot_get_incident (const frameshare_snapshot *snapshot, size_t index,
                                                    frameshare_incident *incident);

/**
 * Frees a snapshot. NULL is ignored.
 *
 * Ownership: takes the snapshot.
 * Failure: none.
 * Threads: no other thread may use the snapshot.
 */
void frameshare_snapshot_free (frameshare_snapshot *snapshot);

/* ---- Streams -------------------------------------------------------------------------------- */

/** The streams that were shared when the list was made. */
typedef struct frameshare_stream_list frameshare_stream_list;

/** A stream. */
typedef struct frameshare_stream_info {
  size_t size;
  /** Its name, and the path of its socket. frameshare_reader_open takes both. */
  const char *name;
  const char *path;
  /** The exporter's process, or 0; and the name of its program, or NULL. */
  uint32_t exporter_pid;
  const char *exporter_program;
} frameshare_stream_info;

#define FRAMESHARE_STREAM_INFO_INIT { sizeof (frameshare_stream_info), NULL, NULL, 0, NULL }

/**
 * Lists the named streams of this user and those in the folders of FRAMESHARE_PATH.
 *
 * Ownership: the list is the caller's, until frameshare_stream_list_free.
 * Failure: PERMISSION_DENIED, SYSTEM; *list is NULL.
 * Threads: any.
 */
frameshare_status frameshare_list_streams (frameshare_stream_list **list);

/**
 * Returns the number of streams in a list.
 *
 * Ownership: unchanged.
 * Failure: 0 for NULL.
 * Threads: any.
 */
size_t frameshare_stream_list_count (const frameshare_stream_list *list);

/**
 * Returns a stream of a list.
 *
 * @param index below frameshare_stream_list_count
 *
 * Ownership: pointers in *info are the list's.
 * Failure: INVALID_ARGUMENT; *info is unchanged.
 * Threads: any.
 */
frameshare_status frameshare_stream_list_get (const frameshare_stream_list *list, size_t index,
                                              frameshare_stream_info *info);

/**
 * Frees a list. NULL is ignored.
 *
 * Ownership: takes the list.
 * Failure: none.
 * Threads: no other thread may use the list.
 */
void frameshare_stream_list_free (frameshare_stream_list *list);

#ifdef __cplusplus
}
#endif

#endif /* FRAMESHARE_H */
