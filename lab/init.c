// SPDX-License-Identifier: BSL-1.0
// Process 1 of the lab's guest. The root folder is the machine's, by hostfs; $lab is the job
// folder. Lays an overlay in memory over it, runs the job's set-up and then its command, and
// carries the command's output to the host. All in one program, because starting a process in a
// guest takes 20 ms.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

enum { buffer_size = 65536, max_entries = 16384 };

static char *conf[64]; // KEY=VALUE, some keys several times
static char *command[max_entries], *environment[max_entries];
static int control = -1;

static _Noreturn void report(const char *format, ...) { // writes the status line for the host
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line - 1, format, arguments);
  va_end(arguments);
  sync(); // flushes the command's writes to the machine's files
  if (control >= 0) {
    dprintf(control, "%s\n", line);
    tcdrain(control);
  } else {
    puts(line);
    fflush(stdout);
  }
  reboot(RB_POWER_OFF);
  for (;;) pause();
}

static void need(int ok, const char *what) {
  if (!ok) report("failed:%s: %s", what, strerror(errno));
}

static void load(const char *name, char **entries, size_t max) { // NUL-terminated strings
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", getenv("lab"), name);
  FILE *file = fopen(path, "r");
  need(file != NULL, path);
  size_t n = 0, size;
  while (n + 1 < max) {
    char *entry = NULL;
    size = 0;
    if (getdelim(&entry, &size, 0, file) < 0) break;
    entries[n++] = entry;
  }
  need(feof(file), "too many entries");
  fclose(file);
}

static const char *value(const char *key, int index) {
  size_t length = strlen(key);
  for (char **entry = conf; *entry; ++entry)
    if (!strncmp(*entry, key, length) && (*entry)[length] == '=' && index-- == 0)
      return *entry + length + 1;
  return NULL;
}
static int number(const char *key) {
  const char *text = value(key, 0);
  return text ? atoi(text) : 0;
}

static void put(const char *path, const char *text) {
  int fd = open(path, O_WRONLY);
  if (fd >= 0 && write(fd, text, strlen(text)) < 0) perror(path);
  if (fd >= 0) close(fd);
}

// ---- files

static void make_folder(const char *path) { // and its parents
  char copy[4096];
  snprintf(copy, sizeof copy, "%s", path);
  for (char *p = copy + 1; *p; ++p)
    if (*p == '/') {
      *p = 0;
      mkdir(copy, 0755);
      *p = '/';
    }
  mkdir(copy, 0755);
}

static void attach(const char *type, const char *path, const char *options) {
  make_folder(path);
  need(mount(type, path, type, 0, options) == 0, path);
}

static void show(const char *source, const char *path) {
  need(mount(source, path, NULL, MS_BIND | MS_REC, NULL) == 0, path);
}

static void make_root(void) {
  char path[4096];
  need(mount("lab", "/mnt", "tmpfs", 0, NULL) == 0, "/mnt");
  mkdir("/mnt/upper", 0755), mkdir("/mnt/work", 0755), mkdir("/mnt/root", 0755);
  need(mount("lab", "/mnt/root", "overlay", 0, "lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work") == 0,
       "overlay");
  need(chdir("/mnt/root") == 0, "/mnt/root");
  attach("proc", "proc", NULL);
  attach("sysfs", "sys", NULL);
  attach("devtmpfs", "dev", NULL);
  attach("devpts", "dev/pts", "ptmxmode=666");
  attach("tmpfs", "dev/shm", "mode=1777");
  attach("tmpfs", "run", "mode=755");
  for (int i = 0; value("writable", i); ++i) {
    snprintf(path, sizeof path, "/mnt/root%s", value("writable", i));
    make_folder(path);
    show(value("writable", i), path);
  }
  make_folder("run/lab");
  show(getenv("lab"), "run/lab");
  setenv("lab", "/run/lab", 1);
  show("run/lab/cpuinfo", "proc/cpuinfo"); // perftest needs "cpu MHz", which UML does not print
  make_folder("run/host");
  need(syscall(SYS_pivot_root, ".", "run/host") == 0, "pivot_root");
  need(umount2("/run/host", MNT_DETACH) == 0, "/run/host");
  rmdir("/run/host");
  static const char *const links[][2] = {{"/proc/self/fd", "/dev/fd"},
                                         {"/proc/self/fd/0", "/dev/stdin"},
                                         {"/proc/self/fd/1", "/dev/stdout"},
                                         {"/proc/self/fd/2", "/dev/stderr"}};
  for (size_t i = 0; i < sizeof links / sizeof *links; ++i)
    if (symlink(links[i][0], links[i][1]) < 0 && errno != EEXIST) perror(links[i][1]);
  mkdir("/run/lock", 01777);
}

// ---- devices

static int contains(const char *path, const char *text) {
  char content[256] = "";
  int fd = open(path, O_RDONLY);
  if (fd < 0) return 0;
  if (read(fd, content, sizeof content - 1) < 0) content[0] = 0;
  close(fd);
  return strstr(content, text) != NULL;
}

static int ready(const char *device, const char *gid) { // active, with its address as a GID
  char path[256];
  snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/state", device);
  if (!contains(path, "ACTIVE")) return 0;
  for (int i = 0; *gid && i < 16; ++i) {
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/gids/%d", device, i);
    if (contains(path, gid)) return 1;
  }
  return !*gid;
}

static void make_devices(void) {
  pid_t child = fork();
  if (child == 0) {
    environ = environment;
    execl("/bin/sh", "sh", "-e", "/run/lab/setup", NULL);
    _exit(127);
  }
  int status;
  need(child > 0 && waitpid(child, &status, 0) == child, "set-up");
  if (status != 0) report("failed:the set-up of the devices failed");
  for (int i = 0; value("wait", i); ++i) { // DEVICE or DEVICE GID
    char device[64] = "", gid[64] = "";
    sscanf(value("wait", i), "%63s %63s", device, gid);
    for (int tries = 0; !ready(device, gid); ++tries) {
      if (tries == 1000) report("failed:%s does not become active with GID '%s'", device, gid);
      usleep(5000);
    }
  }
}

// ---- the command

static int terminal(int n, int flags) {
  char path[16];
  snprintf(path, sizeof path, "/dev/tty%d", n);
  int fd = open(path, flags | O_NOCTTY | O_CLOEXEC);
  need(fd >= 0, path);
  struct termios settings;
  need(tcgetattr(fd, &settings) == 0, path);
  if (!(n == 1 && number("tty"))) cfmakeraw(&settings);
  tcsetattr(fd, TCSANOW, &settings);
  struct winsize size = {.ws_row = number("rows"), .ws_col = number("columns")};
  if (size.ws_row) ioctl(fd, TIOCSWINSZ, &size);
  return fd;
}

// One direction of the command's data. It reads only when all data it has read are written.
struct pump {
  int from, to, is_input;
  size_t begin, length;
  unsigned taken; // pieces of the input that were taken
  char data[buffer_size];
};

static void shut(struct pump *p) {
  if (p->from >= 0 && !p->is_input) close(p->from);
  if (p->to >= 0 && p->is_input) close(p->to);
  p->from = p->to = -1;
}

// Input arrives as numbered files in the job folder, with an empty one at the end. The folder is
// polled every few milliseconds: UML loses wake-ups of a terminal that is fed by a pipe.
enum { look_milliseconds = 10 };

static ssize_t read_input(struct pump *p) {
  char path[64];
  snprintf(path, sizeof path, "/run/lab/in.%u", p->taken);
  int fd = open(path, O_RDONLY);
  if (fd < 0) {
    errno = EAGAIN;
    return -1;
  }
  ssize_t n = read(fd, p->data, buffer_size);
  close(fd);
  unlink(path);
  ++p->taken;
  return n;
}

static void move(struct pump *p) {
  for (;;) {
    if (p->length == 0) {
      ssize_t n = p->is_input ? read_input(p) : read(p->from, p->data, buffer_size);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (n <= 0) {
        shut(p);
        return;
      }
      p->begin = 0;
      p->length = (size_t)n;
    }
    while (p->length > 0) {
      ssize_t n = write(p->to, p->data + p->begin, p->length);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) return;
      if (n < 0 && p->is_input) {
        shut(p);
        return;
      }
      if (n < 0) n = (ssize_t)p->length; // no reader: drop the data
      p->begin += (size_t)n;
      p->length -= (size_t)n;
    }
    if (!p->is_input) return;
  }
}

static int wait_for(struct pump *pumps[], int count, int milliseconds, const sigset_t *mask) {
  struct pollfd fds[3];
  int look = 0;
  for (int i = 0; i < count; ++i) {
    struct pump *p = pumps[i];
    int look_for_input = p->is_input && p->from >= 0 && p->length == 0;
    look |= look_for_input;
    fds[i] = p->length > 0      ? (struct pollfd){p->to, POLLOUT, 0}
             : look_for_input   ? (struct pollfd){-1, 0, 0}
                                : (struct pollfd){p->from, POLLIN, 0};
  }
  if (look && (milliseconds < 0 || milliseconds > look_milliseconds)) milliseconds = look_milliseconds;
  struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
  int n = ppoll(fds, (nfds_t)count, milliseconds < 0 ? NULL : &time, mask);
  for (int i = 0; i < count; ++i)
    if ((n > 0 && fds[i].fd >= 0 && fds[i].revents) ||
        (pumps[i]->is_input && pumps[i]->from >= 0 && pumps[i]->length == 0))
      move(pumps[i]);
  return n;
}

static void list_processes(int to) { // processes with a command line, so no kernel threads
  DIR *folder = opendir("/proc");
  for (struct dirent *entry; folder && (entry = readdir(folder));) {
    int id = atoi(entry->d_name);
    char path[64], line[256] = "", where[64] = "", state = '?';
    if (id < 2) continue;
    snprintf(path, sizeof path, "/proc/%d/cmdline", id);
    int fd = open(path, O_RDONLY);
    ssize_t n = fd < 0 ? 0 : read(fd, line, sizeof line - 1);
    if (fd >= 0) close(fd);
    if (n <= 0) continue;
    for (ssize_t i = 0; i < n - 1; ++i)
      if (!line[i]) line[i] = ' ';
    snprintf(path, sizeof path, "/proc/%d/stat", id);
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = '?';
    if (file) fclose(file);
    snprintf(path, sizeof path, "/proc/%d/wchan", id);
    file = fopen(path, "r");
    if (file && !fgets(where, sizeof where, file)) where[0] = 0;
    if (file) fclose(file);
    dprintf(to, "lab:   %5d %c %-20s %s\n", id, state, where, line);
  }
  if (folder) closedir(folder);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static _Noreturn void become_command(const int fds[3], int control_terminal, const sigset_t *mask) {
  setsid();
  if (control_terminal >= 0) ioctl(control_terminal, TIOCSCTTY, 0);
  for (int i = 0; i < 3; ++i) dup2(fds[i], i);
  signal(SIGPIPE, SIG_DFL);
  sigprocmask(SIG_SETMASK, mask, NULL);
  umask((mode_t)strtol(value("umask", 0), NULL, 8));
  environ = environment;
  execvp(command[0], command);
  int error = errno;
  dprintf(2, "lab: cannot run %s: %s\n", command[0], strerror(error));
  _exit(error == ENOENT ? 127 : 126);
}

static void run(void) {
  static struct pump in = {.is_input = 1}, out, err;
  struct pump *pumps[] = {&in, &out, &err};
  for (int i = 0; i < 3; ++i) pumps[i]->from = pumps[i]->to = -1;
  int fds[3], pipe_fds[2], tty = -1;
  if (number("tty")) {
    fds[0] = fds[1] = fds[2] = tty = terminal(1, O_RDWR);
  } else {
    if (number("stdin")) {
      need(pipe2(pipe_fds, O_CLOEXEC) == 0, "pipe");
      fcntl(pipe_fds[1], F_SETFL, O_NONBLOCK);
      in.from = 0;
      in.to = pipe_fds[1];
      fds[0] = pipe_fds[0];
    } else {
      fds[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
    out.to = terminal(1, O_WRONLY);
    err.to = number("merged") ? out.to : terminal(2, O_WRONLY);
    for (int i = 1; i < 3; ++i) {
      if (i == 2 && number("merged")) {
        fds[2] = fds[1];
      } else if (number(i == 1 ? "out_tty" : "err_tty")) {
        fds[i] = pumps[i]->to;
      } else { // a pipe, so that the command's output is not a terminal
        need(pipe2(pipe_fds, O_CLOEXEC) == 0, "pipe");
        pumps[i]->from = pipe_fds[0];
        fds[i] = pipe_fds[1];
      }
    }
  }

  sigset_t mask, blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGCHLD);
  sigprocmask(SIG_BLOCK, &blocked, &mask);
  pid_t child = fork();
  if (child == 0) become_command(fds, tty, &mask);
  need(child > 0, "fork");
  for (int i = 0; i < 3; ++i)
    if (pumps[i]->from >= 0) close(fds[i]);

  int limit = number("limit"), status = -1;
  double end = now() + limit;
  while (status < 0) {
    int left = limit ? (int)((end - now()) * 1000) : -1;
    if (limit && left <= 0) break;
    wait_for(pumps, 3, left, &mask);
    int result;
    for (pid_t id; (id = waitpid(-1, &result, WNOHANG)) > 0;)
      if (id == child) status = WIFSIGNALED(result) ? 128 + WTERMSIG(result) : WEXITSTATUS(result);
  }
  if (status < 0) {
    int to = tty >= 0 ? tty : err.to;
    dprintf(to, "lab: still running after %d s (process, state, waits in, command line):\n", limit);
    list_processes(to);
  }
  kill(-1, SIGKILL); // the command's background processes must not hold its output open
  shut(&in);
  while ((out.from >= 0 || err.from >= 0) && wait_for(pumps, 3, 2000, NULL) > 0)
    ;
  if (tty >= 0) tcdrain(tty);
  if (out.to >= 0) tcdrain(out.to);
  if (err.to >= 0) tcdrain(err.to);
  if (status < 0) report("limit");
  report("%d", status);
}

static void sigchld(int signal) { (void)signal; }

int main(void) {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGCHLD, sigchld);
  load("conf", conf, sizeof conf / sizeof *conf);
  load("argv", command, max_entries);
  load("env", environment, max_entries);
  make_root();
  control = terminal(4, O_WRONLY);
  put("/proc/sys/kernel/hostname", "lab");
  struct rlimit unlimited = {RLIM_INFINITY, RLIM_INFINITY}, files = {65536, 65536};
  setrlimit(RLIMIT_MEMLOCK, &unlimited);
  setrlimit(RLIMIT_NOFILE, &files);
  make_devices();
  if (chdir(value("cwd", 0)) < 0) report("failed:%s: %s", value("cwd", 0), strerror(errno));
  run();
}
