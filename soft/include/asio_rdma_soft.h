/* SPDX-License-Identifier: BSL-1.0 */
#ifndef ASIO_RDMA_SOFT_H
#define ASIO_RDMA_SOFT_H

#ifdef __cplusplus
extern "C" {
#endif

/* The number of objects of each kind that this process has on the software device; `rdma resource`
 * shows them of the kernel's devices. A test that compares two of these finds an object that was
 * not destroyed. */
struct soft_resources {
  int domains, regions, windows, completion_queues, shared_receive_queues, queue_pairs, ids;
};

void soft_get_resources(struct soft_resources* to);

#ifdef __cplusplus
}
#endif

#endif
