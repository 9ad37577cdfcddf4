/* SPDX-License-Identifier: BSL-1.0 */
#ifndef ASIO_RDMA_SOFT_H
#define ASIO_RDMA_SOFT_H

#ifdef __cplusplus
extern "C" {
#endif

struct ibv_cq;

/* The number of objects of each kind that this process has on the software device; `rdma resource`
 * shows them of the kernel's devices. A test that compares two of these finds an object that was
 * not destroyed. */
struct soft_resources {
  int domains, regions, windows, completion_queues, shared_receive_queues, queue_pairs, ids;
};

void soft_get_resources(struct soft_resources* to);

/* The number of those among them that the program has tried to destroy after the removal of the
 * device, in vain (EIO): their memory is lost until the process ends. An object that is left
 * without being lost was forgotten by the program. */
void soft_get_lost_resources(struct soft_resources* to);

/* Replaces the settings of the device (soft/README.md) for everything that happens from now on, in
 * this process. The occasions of its faults are counted from now on, too. Limits apply to objects
 * that are made afterwards.
 * @param text  as of the environment variable ASIO_RDMA_SOFT; "" for no settings; NULL for those of
 *              the environment
 * Returns 0; or EINVAL, with a message on stderr, if a part of the text is unknown: then the
 * settings stay as they are. From any thread. */
int soft_set(const char* text);

/* The number of faults that have happened since the settings came into force. */
unsigned long soft_get_faults(void);

/* The completion vector (ibv_create_cq(3)) of a completion queue of the software device. */
int soft_get_vector(struct ibv_cq* queue);

#ifdef __cplusplus
}
#endif

#endif
