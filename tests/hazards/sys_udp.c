/* Datagrams are delivered once: a receive that fails half-way because its
 * buffer was absent would lose one for ever. */
#include "hazard.h"
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

enum { DATAGRAMS = 120, BATCH = 8 };

int main(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int receiver = (int)SYS(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    int sender = (int)SYS(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    SYS(bind(receiver, (struct sockaddr *)&address, sizeof address));
    SYS(getsockname(receiver, (struct sockaddr *)&address, &length));
    size_t slot = 16 * KIB;
    unsigned char *out = map(DATAGRAMS * slot), *in = map(DATAGRAMS * slot);
    fill(out, DATAGRAMS * slot, 1);
    struct mmsghdr *headers = map(64 * KIB);
    struct iovec *parts = map(64 * KIB);
    struct sockaddr_in *from = map(64 * KIB);
    socklen_t *from_length = map(64 * KIB);
    churn();
    for (int i = 0; i < DATAGRAMS; i += BATCH) {
        size_t size[BATCH];
        for (int j = 0; j < BATCH; j++) {
            size[j] = 1 + mix((uint64_t)(i + j)) % 9000;
            CHECK(SYS(sendto(sender, out + (size_t)(i + j) * slot, size[j], 0,
                             (struct sockaddr *)&address, sizeof address)) == (long)size[j]);
        }
        if (i % 40 == 0)
            churn(); /* the receiver's buffers are absent or untouched */
        if (i / BATCH % 3 == 0) {
            for (int j = 0; j < BATCH; j++)
                CHECK(SYS(recv(receiver, in + (size_t)(i + j) * slot + 4000, slot - 4000, MSG_DONTWAIT))
                      == (long)size[j]);
        } else if (i / BATCH % 3 == 1) {
            for (int j = 0; j < BATCH; j++) {
                *from_length = sizeof *from;
                CHECK(SYS(recvfrom(receiver, in + (size_t)(i + j) * slot + 4000, slot - 4000, MSG_DONTWAIT,
                                   (struct sockaddr *)from, from_length)) == (long)size[j]);
                CHECK(from->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
            }
        } else {
            for (int j = 0; j < BATCH; j++) {
                parts[j] = (struct iovec){in + (size_t)(i + j) * slot + 4000, slot - 4000};
                headers[j] = (struct mmsghdr){.msg_hdr = {.msg_iov = &parts[j], .msg_iovlen = 1}};
            }
            CHECK(SYS(recvmmsg(receiver, headers, BATCH, MSG_DONTWAIT, NULL)) == BATCH);
            for (int j = 0; j < BATCH; j++)
                CHECK(headers[j].msg_len == size[j]);
        }
    }
    churn();
    for (int i = 0; i < DATAGRAMS; i++)
        for (size_t j = 0; j < 1 + mix((uint64_t)i) % 9000; j++)
            CHECKF(in[(size_t)i * slot + 4000 + j] == pattern_byte(1, (size_t)i * slot + j),
                   "datagram %d byte %zu", i, j);
    return 0;
}
