/* SPDX-License-Identifier: BSL-1.0 */
#ifndef ASIO_RDMA_SOFT_H
#define ASIO_RDMA_SOFT_H

#ifdef __cplusplus
extern "C" {
#endif

/* What this process has on the software device, as `rdma resource` tells of the kernel's. A test
 * that compares two of them finds what was not destroyed. */
struct soft_resources {
  int domains, regions, windows, completion_queues, shared_receive_queues, queue_pairs, ids;
};

void soft_get_resources(struct soft_resources* to);

#ifdef __cplusplus
}
#endif

#endif
