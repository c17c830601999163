"""What a launch read and wrote, as a table."""

from html import escape

from tfm_lab.lessons.cards import Card
from tfm_lab.lessons.interpreting import Launch
from tfm_lab.lessons.puzzles import PUZZLES, Head


def programs(name: str, head: Head) -> str:
    """The grid in words."""
    grid = PUZZLES[name].grid(head)
    return "1 program" if grid == (1,) else f"{' x '.join(map(str, grid))} programs"


def launch_card(ran: Launch, title: str) -> Card:
    """Loads, stores and bytes of every tensor, and what its size is."""
    heads = ("tensor", "size, bytes", "loads", "bytes read", "stores", "bytes written")
    rows = [
        (tensor, ran.tensors[tensor].nbytes, access.loads, access.bytes_read, access.stores, access.bytes_written)
        for tensor, access in ran.access.items()
    ]
    size, loads, read, stores, written = (sum(column) for column in zip(*(row[1:] for row in rows), strict=True))
    rows.append(("together", size, loads, read, stores, written))
    caption = title + (f"; {ran.product_flops:,} floating-point operations in tl.dot" if ran.product_flops else "")
    head = "".join(f'<th scope="col">{cell}</th>' for cell in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(str(row[0]))}</th>' + "".join(f"<td>{cell:,}</td>" for cell in row[1:]) + "</tr>"
        for row in rows
    )
    table = f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    words = [caption, *(f"{row[0]}: {row[3]:,} of {row[1]:,} bytes read, {row[5]:,} written" for row in rows)]
    return Card(table, "\n".join(words))
