/* The ceiling of publishing to JetStream over one connection: frames that cost almost nothing to make, written as fast
 * as the window lets them, and every acknowledgement counted. No retries: any error ends the run with status 1.
 *
 *   ceiling PORT SUBJECT COUNT SIZE MODE [WINDOW]
 *
 *   MODE  acks      one acknowledgement a message, WINDOW (4096) in flight
 *         acks-id   the same with a Nats-Msg-Id each
 *         fast      fast ingest: one acknowledgement every 500 messages, two of those outstanding
 *         fast-id   the same with ids
 *
 * Prints messages per second, from the first frame to the last acknowledgement.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK = 256, FLOW = 500, OUTSTANDING = 2, ID_DIGITS = 10 };

static long count, window = 4096;
static int size, fast, with_id;
static int sock;
static char inbox[64], run[32];
static char *out;
static size_t out_at, out_len; /* what of `out` is still to be written */
static char in[1 << 18];
static size_t in_len;

static long sent, acked;    /* messages; in fast ingest `acked` is the highest stored sequence of the batch */
static long flow;           /* messages between two fast-ingest acknowledgements, as the server allows */
static int started, closing, closed;

static void fail(const char *what, const char *text, size_t length) {
    fprintf(stderr, "%s: %.*s\n", what, (int)(length < 400 ? length : 400), text);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static char *put(char *to, const char *from, size_t n) { return (char *)memcpy(to, from, n) + n; }

static char *put_number(char *to, long value) {
    char digits[24];
    int i = sizeof digits;
    do digits[--i] = '0' + value % 10; while (value /= 10);
    return put(to, digits + i, sizeof digits - i);
}

static void connect_and_subscribe(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    int one = 1;
    char hello[256];
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sock = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(sock, (void *)&address, sizeof address)) fail("connect", strerror(errno), 99);
    setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    int n = snprintf(hello, sizeof hello,
                     "CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true}\r\n"
                     "SUB %s> 1\r\nPING\r\n", inbox);
    if (write(sock, hello, n) != n) fail("write", strerror(errno), 99);
    while (!memmem(in, in_len, "PONG\r\n", 6)) {
        ssize_t r = read(sock, in + in_len, sizeof in - in_len);
        if (r <= 0) fail("read", "closed before PONG", 99);
        in_len += r;
        if (memmem(in, in_len, "-ERR", 4)) fail("refused", in, in_len);
    }
    in_len = 0;
    fcntl(sock, F_SETFL, O_NONBLOCK);
}

/* The next `n` messages as PUB or HPUB frames. */
static void frame(const char *subject, long n, const char *payload) {
    char head[256], middle[64], id_head[96];
    int head_len, middle_len = 0, id_head_len = 0;
    if (fast) head_len = snprintf(head, sizeof head, "%s %s %s%d.fail.", with_id ? "HPUB" : "PUB", subject, inbox, FLOW);
    else head_len = snprintf(head, sizeof head, "%s %s %s", with_id ? "HPUB" : "PUB", subject, inbox);
    if (with_id) {
        id_head_len = snprintf(id_head, sizeof id_head, "NATS/1.0\r\nNats-Msg-Id: %s-", run);
        int header = id_head_len + ID_DIGITS + 4;
        middle_len = snprintf(middle, sizeof middle, " %d %d\r\n", header, header + size);
    } else {
        middle_len = snprintf(middle, sizeof middle, " %d\r\n", size);
    }
    char *p = out;
    for (long i = 0; i < n; i++) {
        long number = ++sent;
        p = put(p, head, head_len);
        p = put_number(p, number);
        if (fast) p = put(p, number == 1 ? ".0.$FI" : ".1.$FI", 6);
        p = put(p, middle, middle_len);
        if (with_id) {
            char digits[24];
            snprintf(digits, sizeof digits, "%0*ld", ID_DIGITS, number);
            p = put(p, id_head, id_head_len);
            p = put(p, digits, ID_DIGITS);
            p = put(p, "\r\n\r\n", 4);
        }
        p = put(p, payload, size);
        p = put(p, "\r\n", 2);
    }
    out_at = 0;
    out_len = p - out;
}

/* How many messages may go now. */
static long room(void) {
    if (!fast) return window - (sent - acked);
    if (!started) return sent == 0; /* the first reply says that this is fast ingest, and how wide */
    return acked + flow * OUTSTANDING - sent;
}

static void next_frames(const char *subject, const char *payload) {
    if (out_at < out_len) return;
    if (sent < count) {
        long want = count - sent < CHUNK ? count - sent : CHUNK, may = room();
        if (fast && !started) want = 1;
        if (may < want && !(fast && may >= flow * OUTSTANDING / 2)) return; /* whole chunks, or half a window */
        frame(subject, may < want ? may : want, payload);
    } else if (fast && started && !closing) {
        out_len = snprintf(out, 256, "PUB %s %s%d.fail.%ld.3.$FI 0\r\n\r\n", subject, inbox, FLOW, count + 1);
        out_at = 0;
        closing = 1;
    }
}

static long field(const char *body, size_t n, const char *name) {
    const char *at = memmem(body, n, name, strlen(name));
    return at ? atol(at + strlen(name)) : -1;
}

static void reply(const char *body, size_t n) {
    if (memmem(body, n, "\"error\"", 7) || memmem(body, n, "\"duplicate\"", 11)) fail("refused", body, n);
    if (!fast) {
        if (field(body, n, "\"seq\":") < 1) fail("not an acknowledgement", body, n);
        acked++;
    } else if (memmem(body, n, "\"type\":\"ack\"", 12)) {
        started = 1;
        acked = field(body, n, "\"seq\":");
        flow = field(body, n, "\"msgs\":");
    } else if (memmem(body, n, "\"batch\":", 8)) {
        if (field(body, n, "\"count\":") < count) fail("batch ended early", body, n);
        closed = 1;
    } else {
        fail("not expected", body, n);
    }
}

/* Whole protocol messages of what was read; the rest stays for the next read. */
static void parse(void) {
    char *p = in, *end = in + in_len, *line;
    while ((line = memmem(p, end - p, "\r\n", 2))) {
        size_t n = line - p;
        if (n >= 4 && !memcmp(p, "MSG ", 4)) {
            long bytes = atol((char *)memrchr(p, ' ', n) + 1);
            if (line + 2 + bytes + 2 > end) break;
            reply(line + 2, bytes);
            p = line + 2 + bytes + 2;
        } else if (n == 4 && !memcmp(p, "PING", 4)) {
            if (out_at < out_len) break; /* answer between frames; they are short */
            out_len = put(out, "PONG\r\n", 6) - out;
            out_at = 0;
            p = line + 2;
        } else if (n >= 4 && (!memcmp(p, "INFO", 4) || !memcmp(p, "PONG", 4))) {
            p = line + 2;
        } else {
            fail("server", p, end - p); /* -ERR, or HMSG: no responders, too many requests */
        }
    }
    in_len = end - p;
    memmove(in, p, in_len);
}

static void exchange(void) {
    struct pollfd wait = {.fd = sock, .events = POLLIN | (out_at < out_len ? POLLOUT : 0)};
    if (poll(&wait, 1, 10000) == 0) fail("poll", "nothing for 10 s", 99);
    if (wait.revents & POLLOUT) {
        ssize_t w = write(sock, out + out_at, out_len - out_at);
        if (w < 0 && errno != EAGAIN) fail("write", strerror(errno), 99);
        if (w > 0) out_at += w;
    }
    if (wait.revents & (POLLIN | POLLHUP)) {
        ssize_t r = read(sock, in + in_len, sizeof in - in_len);
        if (r == 0) fail("read", "connection closed", 99);
        if (r < 0 && errno != EAGAIN) fail("read", strerror(errno), 99);
        if (r > 0) {
            in_len += r;
            parse();
        }
    }
}

int main(int argc, char **argv) {
    if (argc < 6) fail("usage", "ceiling PORT SUBJECT COUNT SIZE acks|acks-id|fast|fast-id [WINDOW]", 99);
    const char *subject = argv[2], *mode = argv[5];
    count = atol(argv[3]);
    size = atoi(argv[4]);
    fast = !strncmp(mode, "fast", 4);
    with_id = strstr(mode, "-id") != NULL;
    if (argc > 6) window = atol(argv[6]);
    snprintf(run, sizeof run, "C%d%ld", (int)getpid(), (long)(now() * 1e6) % 1000000000);
    snprintf(inbox, sizeof inbox, "_INBOX.%s.", run);
    char *payload = malloc(size + 1);
    out = malloc((size_t)CHUNK * (size + 400) + 512);
    memset(payload, 'x', size);
    connect_and_subscribe(atoi(argv[1]));

    double began = now();
    while (fast ? !closed : acked < count) {
        next_frames(subject, payload);
        exchange();
    }
    printf("%.0f\n", count / (now() - began));
    return 0;
}
