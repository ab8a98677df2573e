/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/**
 * FrameshareMeta: the number of a buffer's frame in its stream.
 *
 * framesharesrc adds it to each buffer. Elements that convert a frame keep it; elements that mix
 * frames, such as compositor, drop it.
 *
 * Nothing has to be linked: the plugin registers the meta, and its name leads to it.
 */

#ifndef GST_FRAMESHARE_H
#define GST_FRAMESHARE_H

#include <gst/gst.h>

G_BEGIN_DECLS

typedef struct _GstFrameshareMeta GstFrameshareMeta;

/**
 * GstFrameshareMeta:
 * @meta: the base
 * @session: tells this run of the stream from earlier and later ones
 * @sequence: number of the frame in the stream, counted from 1
 * @lost_before: number of frames that the reader lost between the previous buffer and this one
 * @published: time of publication, in ns of CLOCK_MONOTONIC (g_get_monotonic_time() * 1000)
 * @used_on: NULL unless the frame is in GPU memory. An application that reads it on a CUDA stream
 *   of another context than the pipeline's calls this with the buffer and the CUstream while it
 *   holds the buffer: the frame is released after the work that was queued on that stream until the
 *   buffer's last unref. FALSE: the release does not wait for that stream; the application has to.
 * @repeats: number of times that the frame was pushed before: 0, unless the property resend-last of
 *   framesharesrc repeats it, with the same sequence and lost_before 0
 *
 * Later versions add fields at the end.
 */
struct _GstFrameshareMeta
{
  GstMeta meta;

  guint64 session;
  guint64 sequence;
  guint64 lost_before;
  guint64 published;

  gboolean (*used_on) (GstBuffer * buffer, gpointer stream);

  guint64 repeats;
};

/**
 * gst_buffer_get_frameshare_meta:
 * @buffer: a buffer
 *
 * Returns: (nullable): the meta, valid as long as @buffer; NULL if there is none
 */
static inline const GstFrameshareMeta *
gst_buffer_get_frameshare_meta (GstBuffer * buffer)
{
  const GstMetaInfo *info = gst_meta_get_info ("FrameshareMeta");

  if (info == NULL || info->size < sizeof (GstFrameshareMeta))
    return NULL;
  return (const GstFrameshareMeta *) gst_buffer_get_meta (buffer, info->api);
}

G_END_DECLS

#endif
