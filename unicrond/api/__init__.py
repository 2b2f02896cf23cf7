"""The API: a process of its own that reads the store and hands commands over to the loop.

app         its parts put together
view        the picture of the present that lists are answered from
lists, stories, summary, commands, live, knowledge, web: the routes
callers     who asks, and what they see
gate        tells who asks
places      where pages begin and end
models      what they answer
errors      how they refuse
rights      who may give which command
sockets     listening, and who is on the other end
protocol    hands that on to the routes
control     from this process to the loop: JSON lines over another socket
heartbeat   what the loop says of itself beside its state
__main__    the process: the same app on loopback and on a Unix socket
"""
