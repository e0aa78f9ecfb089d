/* Stream sockets: send, recv, sendmsg, recvmsg with data, headers, addresses and
 * control messages in absent memory. */
#include "hazard.h"
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

static const size_t bytes = 2 * QUARTER;

static void *send_side(void *argument)
{
    int fd = *(int *)argument;
    unsigned char *out = map(bytes);
    struct msghdr *header = map(64 * KIB);
    struct iovec *parts = map(64 * KIB);
    fill(out, bytes, 1);
    churn();
    for (size_t done = 0; done < bytes / 2;)
        done += (size_t)SYS(send(fd, out + done, bytes / 2 - done, 0));
    for (size_t done = bytes / 2; done < bytes;) {
        size_t want = bytes - done < 100000 ? bytes - done : 100000;
        parts[0] = (struct iovec){out + done, want / 3};
        parts[1] = (struct iovec){out + done + want / 3, want - want / 3};
        memset(header, 0, sizeof *header);
        header->msg_iov = parts;
        header->msg_iovlen = 2;
        done += (size_t)SYS(sendmsg(fd, header, 0));
    }
    return NULL;
}

static void transfer(int to, int from)
{
    unsigned char *in = map(bytes);
    struct msghdr *header = map(64 * KIB);
    struct iovec *parts = map(64 * KIB);
    pthread_t thread;
    PTHREAD(pthread_create(&thread, NULL, send_side, &to));
    for (size_t done = 0; done < bytes;) {
        if (done % 3 == 0) {
            done += (size_t)SYS(recv(from, in + done, bytes - done, 0));
            continue;
        }
        parts[0] = (struct iovec){in + done, 1000 < bytes - done ? 1000 : bytes - done};
        parts[1] = (struct iovec){in + done + parts[0].iov_len, bytes - done - parts[0].iov_len};
        memset(header, 0, sizeof *header);
        header->msg_iov = parts;
        header->msg_iovlen = 2;
        long n = SYS(recvmsg(from, header, 0));
        CHECK(n > 0);
        done += (size_t)n;
    }
    PTHREAD(pthread_join(thread, NULL));
    churn();
    verify(in, bytes, 1);
    SYS(munmap(in, bytes));
}

int main(void)
{
    int *pair = map(64 * KIB);
    SYS(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    transfer(pair[0], pair[1]);

    /* TCP over the loopback; every structure in memory of its own. */
    struct sockaddr_in *address = map(64 * KIB), *peer = map(64 * KIB);
    socklen_t *length = map(64 * KIB);
    int *option = map(64 * KIB);
    int listener = (int)SYS(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    address->sin_family = AF_INET;
    address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    *option = 1;
    *length = sizeof *address;
    churn();
    SYS(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, option, sizeof *option));
    SYS(bind(listener, (struct sockaddr *)address, sizeof *address));
    SYS(listen(listener, 4));
    churn();
    SYS(getsockname(listener, (struct sockaddr *)address, length));
    CHECK(address->sin_port != 0 && *length == sizeof *address);
    int client = (int)SYS(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    churn();
    SYS(connect(client, (struct sockaddr *)address, sizeof *address));
    *length = sizeof *peer;
    churn();
    int server = (int)SYS(accept4(listener, (struct sockaddr *)peer, length, SOCK_CLOEXEC));
    CHECK(peer->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
    *length = sizeof *option;
    churn();
    SYS(getsockopt(server, SOL_SOCKET, SO_TYPE, option, length));
    CHECK(*option == SOCK_STREAM);
    transfer(client, server);

    /* A descriptor is passed; the control message stands in absent memory. */
    char *control = map(64 * KIB), *byte = map(64 * KIB);
    struct msghdr *header = map(64 * KIB);
    struct iovec *part = map(64 * KIB);
    int file = temp_file();
    write_all(file, "hello", 5);
    *part = (struct iovec){byte, 1};
    *header = (struct msghdr){.msg_iov = part, .msg_iovlen = 1, .msg_control = control,
                              .msg_controllen = CMSG_SPACE(sizeof file)};
    struct cmsghdr *message = CMSG_FIRSTHDR(header);
    message->cmsg_level = SOL_SOCKET;
    message->cmsg_type = SCM_RIGHTS;
    message->cmsg_len = CMSG_LEN(sizeof file);
    memcpy(CMSG_DATA(message), &file, sizeof file);
    churn();
    CHECK(SYS(sendmsg(pair[0], header, 0)) == 1);
    memset(control, 0, 100);
    header->msg_controllen = CMSG_SPACE(sizeof file);
    churn();
    CHECK(SYS(recvmsg(pair[1], header, MSG_CMSG_CLOEXEC)) == 1);
    int received;
    memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(header)), sizeof received);
    char text[5];
    CHECK(SYS(pread(received, text, 5, 0)) == 5 && memcmp(text, "hello", 5) == 0);
    return 0;
}
