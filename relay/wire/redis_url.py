"""What both programs take for a Redis URL. The client library is imported only where there is one."""

from urllib.parse import urlsplit


def check_redis_url(url: str) -> None:
    """Raise ValueError for a URL that cannot be meant; the text repeats no part of it.

    The library reads `/zero` as database 0; here a path that is no number is a mistake.
    """
    import redis

    try:
        if not url.isprintable():
            raise ValueError
        redis.ConnectionPool.from_url(url)
        parts = urlsplit(url)
        database = parts.path.strip("/")
        is_number = database.isascii() and database.isdigit()
        if parts.scheme != "unix" and database and not is_number:
            raise ValueError
    except ValueError:
        raise ValueError("not redis://[USER:PASSWORD@]HOST[:PORT][/DB] or rediss://…") from None


def place_of_redis(url: str) -> str:
    """HOST:PORT, or the path of a unix socket: what a log line may say of a checked URL, which may hold a password."""
    import redis

    where = redis.ConnectionPool.from_url(url).connection_kwargs
    return str(where.get("path") or f"{where.get('host', 'localhost')}:{where.get('port', 6379)}")
